#include "chapters/06_backward_recompute/backward_recompute.hpp"

#include <algorithm>

#include "chapters/06_backward_recompute/backward_shapes.hpp"
#include "chapters/06_backward_recompute/backward_tile.hpp"
#include "chapters/06_backward_recompute/causal_walks.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

constexpr Index kMostBands = 16;          // so many threads can help
constexpr Index kWorthThreads = 1 << 15;  // multiply-adds; less is done before they are awake

template <class T>
struct Problem {
  MatrixIn<T> Q, K, V;
  VectorIn<T> m, l;
  MatrixIn<T> dO;
  VectorIn<T> delta;
  MatrixOut<T> dQ, dK, dV;
  Index Br, Bc, offset;  // query i sees the keys j <= i + offset
  T scale;
};

// The part of the pair of tiles that begins at query q_start and key k_start.
template <class T>
void add_pair(Problem<T>& p, Index q_start, Index k_start) {
  const Index rows = std::min(p.Br, p.Q.rows() - q_start),
              cols = std::min(p.Bc, p.K.rows() - k_start);
  const auto Qi = p.Q.middleRows(q_start, rows), dOi = p.dO.middleRows(q_start, rows);
  const auto Kj = p.K.middleRows(k_start, cols), Vj = p.V.middleRows(k_start, cols);
  const auto mi = p.m.segment(q_start, rows), li = p.l.segment(q_start, rows),
             delta_i = p.delta.segment(q_start, rows);
  const auto visible = count_used_keys<T>(li, q_start, k_start, cols, p.offset);

  // [begin 06.tile]
  BackwardTile<T> tile;
  rebuild_P<T>(tile, Qi, Kj, mi, li, p.scale, visible);                   // [10] [11]
  add_dV<T>(p.dV.middleRows(k_start, cols), tile, dOi, visible);          // [12]
  compute_dP<T>(tile, dOi, Vj);                                           // [13]
  compute_dS<T>(tile, delta_i, visible);                                  // [14]
  add_dQ<T>(p.dQ.middleRows(q_start, rows), tile, Kj, p.scale, visible);  // [15]
  add_dK<T>(p.dK.middleRows(k_start, cols), tile, Qi, p.scale, visible);  // [16]
  // [end]
}

// All pairs of tiles of the queries q_begin .. q_end - 1 and the keys k_begin .. k_end - 1, the
// key tile outside.
template <class T>
void add_band(Problem<T>& p, Index q_begin, Index q_end, Index k_begin, Index k_end) {
  // [begin 06.walk]
  for (Index k_start = k_begin; k_start < k_end; k_start += p.Bc) {  // [5]
    // the query tiles before the first that sees a key of this tile are hidden, and skipped
    const Index first = first_query_tile(k_start, p.Q.rows(), p.Br, p.offset);
    for (Index q_start = std::max(q_begin, first); q_start < q_end; q_start += p.Br) {  // [8]
      add_pair(p, q_start, k_start);
    }
  }
  // [end]
}

}  // namespace

template <class T>
void compute_delta(MatrixIn<T> dO, MatrixIn<T> O, const Vector<T>* dLSE, VectorOut<T> delta) {
  // [begin 06.delta]
  // [4] over the whole row, once: no single tile could know it
  for (Index i = 0; i < O.rows(); ++i) delta[i] = dO.row(i).dot(O.row(i));
  if (dLSE) delta -= *dLSE;
  // [end]
}

template <class T>
void add_gradients(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, VectorIn<T> m, VectorIn<T> l,
                   MatrixIn<T> dO, VectorIn<T> delta, MatrixOut<T> dQ, MatrixOut<T> dK,
                   MatrixOut<T> dV, Tiling tile, Index offset, T scale) {
  const Index Nq = Q.rows(), Nk = K.rows();
  if (Nq == 0 || Nk == 0) return;
  const Index Br = std::min(tile.Br, Nq), Bc = std::min(tile.Bc, Nk);  // no product overflows
  Problem<T> problem{Q, K, V, m, l, dO, delta, dQ, dK, dV, Br, Bc, offset, scale};

  // [begin 06.diagonals]
  // Queries and keys in bands of whole tiles. On one diagonal no two pairs of bands share a
  // query or a key, so they may run at the same time; and from diagonal to diagonal each sum
  // grows in one order, whatever the number of threads
  const Index Tr = ceil_div(Nq, Br), Tc = ceil_div(Nk, Bc);
  const Index bands = std::min(kMostBands, std::max(Tr, Tc));
  const Index q_band = Br * ceil_div(Tr, bands), k_band = Bc * ceil_div(Tc, bands);
  const bool parallel = q_band * k_band * Q.cols() >= kWorthThreads;
  for (Index diagonal = 0; diagonal < bands; ++diagonal) {
    parallel_for(bands, parallel, [&](Index j) {
      const Index i = (j + diagonal) % bands;
      add_band(problem, i * q_band, std::min(Nq, (i + 1) * q_band), j * k_band,
               std::min(Nk, (j + 1) * k_band));
    });
  }
  // [end]
}

template <class T>
void backward_recompute_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixIn<T> O,
                            VectorIn<T> m, VectorIn<T> l, MatrixIn<T> dO, VectorOut<T> delta,
                            MatrixOut<T> dQ, MatrixOut<T> dK, MatrixOut<T> dV, Tiling tile,
                            bool causal, std::optional<double> scale, const Vector<T>* dLSE) {
  require_backward_shapes({.Q = shape_of(Q),
                           .K = shape_of(K),
                           .V = shape_of(V),
                           .O = shape_of(O),
                           .dO = shape_of(dO),
                           .dQ = shape_of(dQ),
                           .dK = shape_of(dK),
                           .dV = shape_of(dV),
                           .m = m.size(),
                           .l = l.size(),
                           .delta = delta.size(),
                           .dLSE = dLSE ? std::optional(dLSE->size()) : std::nullopt});
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());

  dQ.setZero();  // [3]
  dK.setZero();  // [7]
  dV.setZero();
  compute_delta<T>(dO, O, dLSE, delta);  // [4]
  add_gradients<T>(Q, K, V, m, l, dO, delta, dQ, dK, dV, tile,
                   mask_offset(Q.rows(), K.rows(), causal), s);  // [5]-[19]
}

template void compute_delta<float>(MatrixIn<float>, MatrixIn<float>, const Vector<float>*,
                                   VectorOut<float>);
template void add_gradients<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                   VectorIn<float>, VectorIn<float>, MatrixIn<float>,
                                   VectorIn<float>, MatrixOut<float>, MatrixOut<float>,
                                   MatrixOut<float>, Tiling, Index, float);
template void backward_recompute_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                            MatrixIn<float>, VectorIn<float>, VectorIn<float>,
                                            MatrixIn<float>, VectorOut<float>, MatrixOut<float>,
                                            MatrixOut<float>, MatrixOut<float>, Tiling, bool,
                                            std::optional<double>, const Vector<float>*);
template void compute_delta<double>(MatrixIn<double>, MatrixIn<double>, const Vector<double>*,
                                    VectorOut<double>);
template void add_gradients<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                    VectorIn<double>, VectorIn<double>, MatrixIn<double>,
                                    VectorIn<double>, MatrixOut<double>, MatrixOut<double>,
                                    MatrixOut<double>, Tiling, Index, double);
template void backward_recompute_cpu<double>(
    MatrixIn<double>, MatrixIn<double>, MatrixIn<double>, MatrixIn<double>, VectorIn<double>,
    VectorIn<double>, MatrixIn<double>, VectorOut<double>, MatrixOut<double>, MatrixOut<double>,
    MatrixOut<double>, Tiling, bool, std::optional<double>, const Vector<double>*);

}  // namespace flash_steps

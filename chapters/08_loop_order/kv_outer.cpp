#include "chapters/08_loop_order/kv_outer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "chapters/02_io_counting/counted_matrix.hpp"
#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/08_loop_order/sizes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

// What belongs to the queries, in HBM; what is loaded and stored is counted.
template <class T>
struct Hbm {
  Hbm(MatrixIn<T> Q, MatrixOut<T> O, VectorOut<T> m, VectorOut<T> l, Counts& counts)
      : Q(Q, counts.reads, counts.writes),
        O(O, counts.reads, counts.writes),
        m(m, counts.statistics_reads, counts.statistics_writes),
        l(l, counts.statistics_reads, counts.statistics_writes) {}
  CountedMatrix<const T> Q;  // (Nq, d)
  CountedMatrix<T> O, m, l;  // (Nq, d), (Nq, 1), (Nq, 1)
};

// How many leading keys of a key tile each row of a Q tile sees.
std::vector<Index> visible_to(Index q_start, Index rows, Index k_start, Index cols,
                              Index offset) {
  std::vector<Index> visible;
  for (Index r = 0; r < rows; ++r) {
    visible.push_back(visible_keys(q_start + r, k_start, cols, offset));
  }
  return visible;
}

// The rows of one Q tile while they are on chip: what the K/V tiles so far have left of them.
template <class T>
struct Rows {
  Matrix<T> O, m, l;  // (rows, d), (rows, 1), (rows, 1)
};

// Lets the part of one K/V tile join the rows. part: its own maximum, sum and O, as if there
// were no other keys. last: no K/V tile comes after it for these rows.
template <class T>
void merge(Rows<T>& rows, const TileState<T>& part, Normalise normalise, bool last) {
  const bool normalised = normalise == Normalise::every_tile;
  // [begin 08.merge]
  for (Index r = 0; r < part.m.size(); ++r) {
    // [11] the new maximum, and what carries either side over to it. While there is none above
    // -inf, (-inf) - (-inf) is kept out of the exponents
    const T m_new = std::max(rows.m(r, 0), part.m[r]);
    const T shift = m_new == -kInf<T> ? T(0) : m_new;
    T alpha = std::exp(rows.m(r, 0) - shift), beta = std::exp(part.m[r] - shift);
    const T l_new = alpha * rows.l(r, 0) + beta * part.l[r];

    // [12] a normalised O has been divided by its l, and takes that back before it is added to
    if (normalised) alpha *= rows.l(r, 0);
    if (normalised || last) {  // 0, not 0/0, for a row that has not seen a key yet
      alpha = l_new == T(0) ? T(0) : alpha / l_new;
      beta = l_new == T(0) ? T(0) : beta / l_new;
    }
    rows.O.row(r) = alpha * rows.O.row(r) + beta * part.O.row(r);
    rows.l(r, 0) = l_new;
    rows.m(r, 0) = m_new;
  }
  // [end]
}

}  // namespace

template <class T>
Counts kv_outer_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O, VectorOut<T> m,
                    VectorOut<T> l, Tiling tile, bool causal, std::optional<double> scale,
                    Normalise normalise) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_size("m", m.size(), Q.rows());
  require_size("l", l.size(), Q.rows());
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, Nk, causal);
  // Q tiles side by side count apart; K and V come behind them
  std::vector<Counts> counts(static_cast<std::size_t>(Tr + 1));
  const CountedMatrix<const T> hbm_K(K, counts.back().reads, counts.back().writes),
      hbm_V(V, counts.back().reads, counts.back().writes);
  O.setZero();  // [2]
  m.setConstant(-kInf<T>);
  l.setZero();
  if (Nq == 0) return {};

  // [begin 08.kv-outer]
  for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {  // [5]
    const Index cols = std::min(tile.Bc, Nk - k_start);
    const Matrix<T> Kj = hbm_K.load(k_start, 0, cols, d);  // [6] once for all queries
    const Matrix<T> Vj = hbm_V.load(k_start, 0, cols, d);

    parallel_for(Tr, true, [&](Index i) {  // [7]
      const Index q_start = i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
      const Index k_stop = visible_keys(q_start + rows - 1, 0, Nk, offset);
      if (k_start >= k_stop) return;  // hidden: these queries see none of its keys
      const auto visible = visible_to(q_start, rows, k_start, cols, offset);
      const Hbm<T> hbm(Q, O, m, l, counts[static_cast<std::size_t>(i)]);
      const Matrix<T> Qi = hbm.Q.load(q_start, 0, rows, d);  // [8]
      TileState<T> part(rows, d);
      fold_tile<T>(part, Qi, Kj, Vj, s, visible);  // [9] [10] this tile alone

      Rows<T> old{hbm.O.load(q_start, 0, rows, d), hbm.m.load(q_start, 0, rows, 1),
                  hbm.l.load(q_start, 0, rows, 1)};  // [8] what the tiles before have left
      merge(old, part, normalise, k_start + cols >= k_stop);  // [11] [12]
      hbm.O.store(q_start, 0, old.O);                         // [12]
      hbm.l.store(q_start, 0, old.l);                         // [13]
      hbm.m.store(q_start, 0, old.m);
    });
  }
  // [end]
  return sum(counts);
}

template Counts kv_outer_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                    MatrixOut<float>, VectorOut<float>, VectorOut<float>,
                                    Tiling, bool, std::optional<double>, Normalise);
template Counts kv_outer_cpu<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                     MatrixOut<double>, VectorOut<double>, VectorOut<double>,
                                     Tiling, bool, std::optional<double>, Normalise);

}  // namespace flash_steps

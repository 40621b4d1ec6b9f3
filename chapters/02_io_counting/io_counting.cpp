#include "chapters/02_io_counting/io_counting.hpp"

#include <algorithm>
#include <cmath>

#include "chapters/02_io_counting/counted_matrix.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

using Tile = Matrix<float>;

// In the place of attention's arithmetic: O_ic += sum_j (Q_ic + K_jc + V_jc) over the key tile.
void touch(const Tile& Qi, const Tile& Kj, const Tile& Vj, Tile& Oi) {
  Oi += static_cast<float>(Kj.rows()) * Qi;
  Oi.rowwise() += Kj.colwise().sum() + Vj.colwise().sum();
}

void require_statistics(const char* name, VectorIn<float> values, Index Nq) {
  require(values.size() == Nq || values.size() == 0,
          std::string(name) + " must have Nq = " + std::to_string(Nq) +
              " elements or none, found " + std::to_string(values.size()));
}

}  // namespace

Counts walk_q_outer_cpu(MatrixIn<float> Q, MatrixIn<float> K, MatrixIn<float> V,
                        MatrixOut<float> O, VectorOut<float> LSE, Tiling tile) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  require_statistics("LSE", LSE, Nq);

  Counts counts;
  const CountedMatrix<const float> hbm_Q(Q, counts.reads, counts.writes),
      hbm_K(K, counts.reads, counts.writes), hbm_V(V, counts.reads, counts.writes);
  const CountedMatrix<float> hbm_O(O, counts.reads, counts.writes),
      hbm_LSE(LSE, counts.statistics_reads, counts.statistics_writes);
  const bool statistics = LSE.size() > 0;

  // [begin 02.walk-q-outer]
  for (Index q_start = 0; q_start < Nq; q_start += tile.Br) {
    const Index rows = std::min(tile.Br, Nq - q_start);
    const Tile Qi = hbm_Q.load(q_start, 0, rows, d);  // stays while all keys pass
    Tile Oi = Tile::Zero(rows, d);
    for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const Index cols = std::min(tile.Bc, Nk - k_start);
      const Tile Kj = hbm_K.load(k_start, 0, cols, d), Vj = hbm_V.load(k_start, 0, cols, d);
      touch(Qi, Kj, Vj, Oi);
    }
    hbm_O.store(q_start, 0, Oi);
    const float LSE_of_zeros = std::log(static_cast<float>(Nk));
    if (statistics) hbm_LSE.store(q_start, 0, Tile::Constant(rows, 1, LSE_of_zeros));
  }
  // [end]
  return counts;
}

Counts walk_kv_outer_cpu(MatrixIn<float> Q, MatrixIn<float> K, MatrixIn<float> V,
                         MatrixOut<float> O, VectorOut<float> m, VectorOut<float> l,
                         Tiling tile) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  require_statistics("m", m, Nq);
  require_statistics("l", l, Nq);
  require(m.size() == l.size(), "m and l go together");

  Counts counts;
  if (Nq == 0) return counts;
  const CountedMatrix<const float> hbm_Q(Q, counts.reads, counts.writes),
      hbm_K(K, counts.reads, counts.writes), hbm_V(V, counts.reads, counts.writes);
  const CountedMatrix<float> hbm_O(O, counts.reads, counts.writes),
      hbm_m(m, counts.statistics_reads, counts.statistics_writes),
      hbm_l(l, counts.statistics_reads, counts.statistics_writes);
  const bool statistics = m.size() > 0;

  // [begin 02.walk-kv-outer]
  for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {
    const Index cols = std::min(tile.Bc, Nk - k_start);
    const Tile Kj = hbm_K.load(k_start, 0, cols, d);  // stay while all queries pass
    const Tile Vj = hbm_V.load(k_start, 0, cols, d);
    for (Index q_start = 0; q_start < Nq; q_start += tile.Br) {
      const Index rows = std::min(tile.Br, Nq - q_start);
      const Tile Qi = hbm_Q.load(q_start, 0, rows, d);
      Tile Oi = hbm_O.load(q_start, 0, rows, d);  // what the K/V tiles before this one left
      touch(Qi, Kj, Vj, Oi);
      hbm_O.store(q_start, 0, Oi);
      if (!statistics) continue;
      const Tile mi = hbm_m.load(q_start, 0, rows, 1), li = hbm_l.load(q_start, 0, rows, 1);
      hbm_m.store(q_start, 0, mi.cwiseMax(0.0f));
      hbm_l.store(q_start, 0, li.array() + static_cast<float>(cols));
    }
  }
  // [end]
  return counts;
}

}  // namespace flash_steps

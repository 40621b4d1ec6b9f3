#include "chapters/06_backward_recompute/backward_traffic.hpp"

#include <algorithm>

#include "chapters/04_causal_skipping/causal_tiles.hpp"

namespace flash_steps {
namespace {

// Over all pairs of tiles that are not hidden.
struct Passing {
  std::int64_t rows = 0, keys = 0;
};

Passing count_passing(std::int64_t Nq, std::int64_t Nk, Tiling tile, bool causal) {
  const std::int64_t offset = mask_offset(Nq, Nk, causal);
  Passing passing;
  for (std::int64_t q_start = 0; q_start < Nq; q_start += tile.Br) {
    const std::int64_t rows = std::min(tile.Br, Nq - q_start);
    for (std::int64_t k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const std::int64_t cols = std::min(tile.Bc, Nk - k_start);
      if (classify_tile(q_start, rows, k_start, cols, offset) == TileKind::hidden) continue;
      passing.rows += rows;
      passing.keys += cols;
    }
  }
  return passing;
}

// D, which all orders begin with.
BackwardCounts count_delta(std::int64_t Nq, std::int64_t d, bool has_dLSE) {
  return {.reads = 2 * Nq * d, .statistics_reads = has_dLSE ? Nq : 0, .statistics_writes = Nq};
}

}  // namespace

BackwardCounts predict_two_passes(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile,
                                  bool causal, bool has_dLSE) {
  const Passing passing = count_passing(Nq, Nk, tile, causal);
  BackwardCounts counts = count_delta(Nq, d, has_dLSE);
  // [begin 06.predict-two-passes]
  counts.reads += 2 * Nk * d + 2 * passing.rows * d;  // K and V stay, Q and dO pass
  counts.reads += 2 * Nq * d + 2 * passing.keys * d;  // Q and dO stay, K and V pass
  counts.writes += 2 * Nk * d + Nq * d;               // dK and dV, dQ
  counts.statistics_reads += 3 * (passing.rows + Nq);
  // [end]
  return counts;
}

BackwardCounts predict_atomic_dQ(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile,
                                 bool causal, bool has_dLSE) {
  const Passing passing = count_passing(Nq, Nk, tile, causal);
  BackwardCounts counts = count_delta(Nq, d, has_dLSE);
  // [begin 06.predict-atomic-dq]
  counts.reads += 2 * Nk * d + 2 * passing.rows * d;  // K and V stay, Q and dO pass
  counts.writes += 2 * Nk * d + Nq * d;               // dK and dV; dQ = 0
  counts.atomics += passing.rows * d;                 // dQ passes, too
  counts.statistics_reads += 3 * passing.rows;
  // [end]
  return counts;
}

BackwardCounts predict_query_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d,
                                   Tiling tile, bool causal, bool has_dLSE) {
  const Passing passing = count_passing(Nq, Nk, tile, causal);
  BackwardCounts counts = count_delta(Nq, d, has_dLSE);
  // [begin 06.predict-query-outer]
  counts.reads += 2 * Nq * d + 2 * passing.keys * d;  // Q and dO stay, K and V pass
  counts.writes += Nq * d + 2 * Nk * d;               // dQ; dK = dV = 0
  counts.atomics += 2 * passing.keys * d;             // dK and dV pass, too
  counts.statistics_reads += 3 * Nq;
  // [end]
  return counts;
}

}  // namespace flash_steps

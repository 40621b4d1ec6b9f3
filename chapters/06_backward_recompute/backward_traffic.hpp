// What the orders of the backward pass move between HBM and the chip, as exact formulas. With R
// query rows passing the key tiles, C keys passing the query tiles (without a mask R = Tc Nq
// and C = Tr Nk), and 2 Nq d reads for D in all of them:
//
//                  two_passes                     atomic_dQ               query_outer
//   reads          2 (Nq + Nk) d + 2 (R + C) d    2 Nk d + 2 R d          2 Nq d + 2 C d
//   writes         Nq d + 2 Nk d                  Nq d (zeros) + 2 Nk d   Nq d + 2 Nk d (zeros)
//   read + write   -                              R d  (dQ)               2 C d  (dK and dV)
//
// They hold for any sizes, ragged tiles and empty matrices included. As in chapter 02 an access
// is a load or a store that the code names. No Eigen: nvcc may read this file too.
#pragma once

#include <cstdint>

#include "common/tensor/tiling.hpp"

namespace flash_steps {

// In elements. Statistics are the numbers that a row has one of (m, l, delta, dLSE).
struct BackwardCounts {
  std::int64_t reads = 0, writes = 0;  // Q, K, V, O, dO, dQ, dK, dV
  std::int64_t atomics = 0;            // elements added to in place: each is read and written
  std::int64_t statistics_reads = 0, statistics_writes = 0;

  std::int64_t matrices() const { return reads + writes + 2 * atomics; }
  bool operator==(const BackwardCounts&) const = default;
};

// The two forms of backward_recompute_cuda. Nq, Nk >= 0; d, Br, Bc >= 1.
BackwardCounts predict_two_passes(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile,
                                  bool causal = false, bool has_dLSE = false);
BackwardCounts predict_atomic_dQ(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile,
                                 bool causal = false, bool has_dLSE = false);

// The third order, which nothing here runs: one kernel with a query tile outside, dK and dV
// added up in global memory.
BackwardCounts predict_query_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d,
                                   Tiling tile, bool causal = false, bool has_dLSE = false);

}  // namespace flash_steps

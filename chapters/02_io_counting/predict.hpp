// Chapter 02: how many elements attention moves between HBM and the chip, as exact formulas.
//
//   Tr = ceil(Nq / Br), Tc = ceil(Nk / Bc)     tiles of Q, tiles of K and V
//
//   standard   reads Nq d + 2 Tr Nk d + 2 Nq Nk, writes 2 Nq Nk + Nq d
//   q_outer    reads Nq d + 2 Tr Nk d,           writes Nq d;      statistics: writes Nq (LSE)
//   kv_outer   reads 2 Nk d + 2 Tc Nq d,         writes Tc Nq d;   statistics: reads and writes
//                                                                  2 Tc Nq (m and l)
//
// They hold for any sizes, ragged tiles and empty matrices included. An access is a load or a
// store that the code names; caches between it and HBM are left out. No Eigen: nvcc may read
// this file too.
#pragma once

#include <cstdint>
#include <string>

#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// Accesses to HBM, in elements. Statistics are the numbers that a row has one of (m, l, LSE):
// always float32, and counted apart.
struct Counts {
  std::int64_t reads = 0, writes = 0;                        // Q, K, V, S, P, O
  std::int64_t statistics_reads = 0, statistics_writes = 0;  // m, l, LSE

  std::int64_t total() const { return reads + writes + statistics_reads + statistics_writes; }
  bool operator==(const Counts&) const = default;
};

// What each algorithm moves for Q (Nq, d), K and V (Nk, d). Nq, Nk >= 0; d, Br, Bc >= 1. All
// throw std::invalid_argument for other sizes, and for sizes so large that a count could pass
// 2^60.

// Scores in HBM, three passes: S = scale Q K^T, P = softmax(S), O = P V. The first and the last
// walk all keys once for each tile of Br query rows; a row of S fits on chip. Bc plays no part.
Counts predict_standard(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile);

// One Q tile stays on chip while all K/V tiles pass (FlashAttention-2, chapter 03).
Counts predict_q_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile);

// One K/V tile stays on chip while all Q tiles pass, and O, m, l with them (FlashAttention,
// Algorithm 1). Initialising O, m, l is not counted. Without queries nothing moves.
Counts predict_kv_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile);

// WRONG for every order there is, and kept to be compared: each pair of tiles loads Q_i, K_j
// and V_j, that is N^2 d (1/Bc + 2/Br) reads and N d writes where the tiles divide N.
Counts predict_notes(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile);

// ---- bytes

// Bytes of one element of "f32", "bf16" or "f16". Throws std::invalid_argument for others.
std::int64_t bytes_per_element(const std::string& dtype);

// The counts in bytes; a statistic has 4.
Traffic bytes_moved(const Counts& counts, std::int64_t element_bytes);

// ---- tiles for M elements of on-chip memory

// The rule of FlashAttention, Algorithm 1 line 1: the tile that stays gets ceil(M / 4d) rows,
// the tile that passes min(ceil(M / 4d), d). Which is which depends on the loop order. M, d
// >= 1.
//
// The rule is about orders of magnitude: Q_i, K_j, V_j, O_i are a quarter of M each at most,
// and the scores come on top, so that the tiles may need a quarter more than M.
Tiling choose_tiles_q_outer(std::int64_t M, std::int64_t d);
Tiling choose_tiles_kv_outer(std::int64_t M, std::int64_t d);

// WRONG, and kept to be compared: Br = Bc = sqrt(M), rounded down. Its S tile alone fills M.
Tiling choose_tiles_notes(std::int64_t M);

// What tiles take on chip: Q_i, O_i (Br, d), K_j, V_j (Bc, d), S (Br, Bc). In elements.
std::int64_t tile_elements(Tiling tile, std::int64_t d);

// The largest Br = Bc that is a power of two, at most 64, and whose tiles fit M; at least 1.
Tiling default_square_tiles(std::int64_t M, std::int64_t d);

}  // namespace flash_steps

// Which keys a split has, which query rows share a KV head, and how many splits there should
// be: in integers. No Eigen: nvcc reads this file too. The functions are constexpr, so that
// kernels may call them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

inline constexpr std::int64_t kMaxSplits = 8192;  // their LSEs are 32 KB of shared memory

// The keys j with begin <= j < end.
struct KeyRange {
  std::int64_t begin, end;
  constexpr bool empty() const { return begin == end; }
};

// The keys of split s, of 0 .. splits - 1: as many whole tiles of Bc keys for each, so that
// trailing splits may have fewer, or none, where the tiles do not go round.
constexpr KeyRange split_keys(std::int64_t Nk, std::int64_t Bc, std::int64_t splits,
                              std::int64_t s) {
  // [begin 09.split-keys]
  const std::int64_t tiles = ceil_div(ceil_div(Nk, Bc), splits);  // of one split
  const std::int64_t begin = std::min(s * tiles * Bc, Nk);
  return {begin, std::min(begin + tiles * Bc, Nk)};
  // [end]
}

// How many splits have any keys.
constexpr std::int64_t used_splits(std::int64_t Nk, std::int64_t Bc, std::int64_t splits) {
  const std::int64_t Tc = ceil_div(Nk, Bc);
  return Tc == 0 ? 0 : ceil_div(Tc, ceil_div(Tc, splits));
}

struct DecodingSizes {
  std::int64_t B, H, Hkv, Nq, Nk, d;

  // Query heads that share one KV head, and the query rows that do: those of all its heads.
  constexpr std::int64_t group() const { return Hkv == 0 ? 0 : H / Hkv; }
  constexpr std::int64_t group_rows() const { return group() * Nq; }
  constexpr std::int64_t rows() const { return B * H * Nq; }  // of O
};

// The rows that share a KV head are numbered head by head: row p is this head of the group, and
// this query of it. As H = Hkv * group, they also lie side by side among all B * H * Nq rows.
struct GroupRow {
  std::int64_t head, query;
};
constexpr GroupRow group_row(std::int64_t p, std::int64_t Nq) {
  // [begin 09.group-row]
  return {p / Nq, p % Nq};
  // [end]
}

// The rows of one block: up to Br of those that share KV head kv of batch b.
struct BlockRows {
  std::int64_t b, kv;
  std::int64_t first_row, rows;  // among the rows that share the KV head
  std::int64_t row;              // the first, among all B * H * Nq
};
constexpr std::int64_t count_block_rows(const DecodingSizes& sizes, std::int64_t Br) {
  return sizes.B * sizes.Hkv * ceil_div(sizes.group_rows(), Br);
}
// which: from 0 to count_block_rows - 1.
constexpr BlockRows block_rows(const DecodingSizes& sizes, std::int64_t Br,
                               std::int64_t which) {
  const std::int64_t group_rows = sizes.group_rows(), Tr = ceil_div(group_rows, Br);
  const std::int64_t head = which / Tr, first_row = which % Tr * Br;  // of B * Hkv
  return {head / sizes.Hkv, head % sizes.Hkv, first_row, std::min(Br, group_rows - first_row),
          head * group_rows + first_row};
}

// The number of splits for `--splits auto`, where `slots` blocks (processors) run at the same
// time. A part costs each row d + 1 numbers, written and read, and each key costs 2 d: so a
// split has at least 16 keys for each row that shares them, for parts of at most about 1/16 of
// the bytes, and at least four tiles. At least 1; exactly 1 where there is nothing to split.
constexpr std::int64_t choose_splits(const DecodingSizes& sizes, Tiling tile,
                                     std::int64_t slots) {
  const std::int64_t Tc = ceil_div(sizes.Nk, tile.Bc);
  const std::int64_t shortest = std::max(16 * sizes.group_rows(), 4 * tile.Bc);
  const std::int64_t most = std::min(sizes.Nk / shortest, kMaxSplits);
  // [begin 09.choose-splits]
  const std::int64_t blocks = count_block_rows(sizes, tile.Br);  // without splitting
  if (blocks == 0 || most <= 1) return 1;

  // how many tiles the busiest slot walks, one after another
  const auto steps = [&](std::int64_t splits) {
    return ceil_div(blocks * splits, slots) * ceil_div(Tc, splits);
  };
  std::int64_t fewest = steps(1);
  for (std::int64_t n = 2; n <= most; ++n) fewest = std::min(fewest, steps(n));

  // the first number that comes within a twentieth of that: fewer splits, fewer parts
  std::int64_t splits = 1;
  while (20 * steps(splits) > 21 * fewest) ++splits;
  return splits;
  // [end]
}

// Throws std::invalid_argument unless 1 <= splits <= kMaxSplits.
inline void require_splits(std::int64_t splits) {
  if (splits >= 1 && splits <= kMaxSplits) return;
  require(false, "the number of splits must be from 1 to " + std::to_string(kMaxSplits) +
                     ", found " + std::to_string(splits));
}

}  // namespace flash_steps

// Which keys a causal mask shows to a row and to a tile, and how many tiles are left to do: in
// integers. No Eigen: nvcc reads this file too. The functions are constexpr, so that kernels
// may call them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The mask is one number: key j is visible to query i iff j <= i + offset.
//
// Causal is bottom-right aligned: the last query sees all keys, so offset = Nk - Nq, negative
// where there are more queries than keys. Without a mask any offset >= Nk - 1 does.
constexpr std::int64_t mask_offset(std::int64_t Nq, std::int64_t Nk, bool causal) {
  return causal ? Nk - Nq : Nk;
}

// A tile of scores is hidden if no row of it sees any of its keys, full if every row sees every
// key, else partial.
enum class TileKind { hidden, full, partial };

// The tile of the queries row0 .. row0 + rows - 1 and the keys col0 .. col0 + cols - 1, with
// rows and cols >= 1 as they are: less than Br and Bc at a ragged edge.
constexpr TileKind classify_tile(std::int64_t row0, std::int64_t rows, std::int64_t col0,
                                 std::int64_t cols, std::int64_t offset) {
  // [begin 04.classify-tile]
  const std::int64_t first_row_sees = row0 + offset;  // keys up to this one
  const std::int64_t last_row_sees = row0 + rows - 1 + offset;
  if (col0 > last_row_sees) return TileKind::hidden;             // not even the first key
  if (col0 + cols - 1 <= first_row_sees) return TileKind::full;  // even the last key
  return TileKind::partial;
  // [end]
}

// How many leading keys of a tile of `cols` keys from col0 on the query `row` sees: from 0, if
// the tile lies beyond its last key, to cols.
constexpr std::int64_t visible_keys(std::int64_t row, std::int64_t col0, std::int64_t cols,
                                    std::int64_t offset) {
  // [begin 04.visible-keys]
  const std::int64_t seen = row + offset + 1 - col0;  // on an endless tile; may be negative
  return std::clamp<std::int64_t>(seen, 0, cols);
  // [end]
}

// What a walk does with hidden tiles: leave them out, or compute them and give every key weight
// 0 ("mask everything"), to see what skipping is worth.
enum class Visit { skip_hidden, all_tiles };

struct TileCounts {
  std::int64_t hidden = 0, full = 0, partial = 0;
  bool operator==(const TileCounts&) const = default;
};

// The Tr * Tc tiles of one head by their kind. A walk that skips visits full + partial of them.
constexpr TileCounts count_tiles(std::int64_t Nq, std::int64_t Nk, Tiling tile, bool causal) {
  const std::int64_t offset = mask_offset(Nq, Nk, causal);
  TileCounts counts;
  for (std::int64_t q_start = 0; q_start < Nq; q_start += tile.Br) {
    const std::int64_t rows = std::min(tile.Br, Nq - q_start);
    for (std::int64_t k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const std::int64_t cols = std::min(tile.Bc, Nk - k_start);
      const TileKind kind = classify_tile(q_start, rows, k_start, cols, offset);
      if (kind == TileKind::hidden) ++counts.hidden;
      if (kind == TileKind::full) ++counts.full;
      if (kind == TileKind::partial) ++counts.partial;
    }
  }
  return counts;
}

}  // namespace flash_steps

// From one head to a batch of them, in integers: which block has which tile of which head, and
// which key/value head that head looks at. No Eigen: nvcc reads this file too. The functions
// are constexpr, so that kernels may call them.
#pragma once

#include <cstdint>

namespace flash_steps {

// Query heads share key/value heads in groups of neighbours: with H = 8 and Hkv = 2 the heads 0
// to 3 look at key/value head 0, and 4 to 7 at 1. Hkv = H is ordinary attention, Hkv = 1 is
// called MQA, and what lies between GQA. Hkv divides H.
constexpr std::int64_t kv_head(std::int64_t h, std::int64_t H, std::int64_t Hkv) {
  // [begin 07.kv-head]
  return h / (H / Hkv);
  // [end]
}

// Tile i of head h of batch b.
struct TilePlace {
  std::int64_t b, h, i;
};

// A pair of tiles: the queries from q_start on and the keys from k_start on, of query head h of
// batch b.
struct TileOrigin {
  std::int64_t b, h, q_start, k_start;
};

// The work of a batch in one row: turn `index`, of `tiles` * B * H in all, is this tile. All
// heads' last tiles come first, then the last but one, ...: under a causal mask these have the
// longest walks. Neighbours in the row are heads of one group, which load the same keys.
constexpr TilePlace tile_place(std::int64_t index, std::int64_t tiles, std::int64_t B,
                               std::int64_t H) {
  // [begin 07.tile-place]
  const std::int64_t head = index % (B * H);
  return {head / H, head % H, tiles - 1 - index / (B * H)};
  // [end]
}

}  // namespace flash_steps

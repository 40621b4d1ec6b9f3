// One block's work on the device: what split_walk.hpp is on the CPU. Chapter 10 calls it with a
// loader of its own.
#pragma once

#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/09_flash_decoding/splits.hpp"
#include "common/tensor/layout.hpp"

namespace flash_steps {

// Whether all rows begin at multiples of 16 bytes and are so long: then they may be loaded as
// float4.
inline bool rows_of_16_bytes(const HeadsLayout& at) {
  return at.d % 4 == 0 && at.stride_b % 4 == 0 && at.stride_h % 4 == 0 && at.stride_n % 4 == 0;
}

// Loads the rows of a block from Q [B, H, Nq, d], and sets m, l and O to what they are before
// the first key. A barrier must stand before they are read.
__device__ inline void start_rows(const TileMemory& tile, global<const float> Q,
                                  const HeadsLayout& Q_at, const DecodingSizes& sizes,
                                  const BlockRows& at) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int rows = static_cast<int>(at.rows), d = tile.d;
  // [begin 09.gather-rows-cuda]
  for (int e = thread; e < rows * d; e += threads) {
    const GroupRow row = group_row(at.first_row + e / d, sizes.Nq);
    const std::int64_t head = at.kv * sizes.group() + row.head;
    tile.Q[e] = Q[Q_at.offset(at.b, head, row.query) + e % d];
  }
  // [end]
  reset_state(tile, rows);
}

// Folds the keys of one split into the state of the block's rows, row r of which is query
// (first_row + r) % Nq and sees the keys j <= query + offset. load(k_start, cols) brings the
// keys k_start .. k_start + cols - 1 and their values to tile.K and tile.V, wherever they lie.
// Called by all threads of the block, a multiple of 32, which may read tile.O, tile.m and
// tile.l when it returns. O is not divided by l yet.
template <class LoadTile>
__device__ void walk_split(const TileMemory& tile, const BlockRows& at, std::int64_t Nq,
                           const KeyRange& keys, std::int64_t offset, float scale,
                           const LoadTile& load) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int rows = static_cast<int>(at.rows);
  const std::int64_t Bc = tile.Bc;

  // [begin 09.walk-cuda]
  for (std::int64_t k_start = keys.begin; k_start < keys.end; k_start += Bc) {  // [6]
    const int cols = static_cast<int>(std::min(Bc, keys.end - k_start));  // the last: short
    load(k_start, cols);                                                  // [7]
    for (int r = thread; r < rows; r += threads) {
      const std::int64_t query = group_row(at.first_row + r, Nq).query;
      tile.visible[r] = static_cast<int>(visible_keys(query, k_start, cols, offset));
    }
    __syncthreads();  // the tile is complete

    fold_tile(tile, rows, cols, scale);  // [8]-[10]
    __syncthreads();                     // the tile may be overwritten
  }
  // [end]
}

// Stores the state of the block's rows as their part of split s: o to O (splits * rows, d),
// divided by l, and LSE to (splits, rows), `rows` being all B * H * Nq. The walk must have
// ended with a barrier.
__device__ inline void store_part(global<float> O, global<float> LSE, std::int64_t s,
                                  std::int64_t rows, const TileMemory& tile,
                                  const BlockRows& at) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t row = s * rows + at.row;
  // [begin 09.store-part-cuda]
  store_rows(O + row * tile.d, tile.d, tile, static_cast<int>(at.rows));  // [12] [14]
  for (int r = thread; r < at.rows; r += threads) {
    LSE[row + r] = tile.m[r] + logf(tile.l[r]);  // [13] [15]
  }
  // [end]
}

// The block's rows have no part of split s, which is empty: LSE = -inf, and o stays as it is.
__device__ inline void store_empty_part(global<float> LSE, std::int64_t s, std::int64_t rows,
                                        const BlockRows& at) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int r = thread; r < at.rows; r += threads) LSE[s * rows + at.row + r] = -INFINITY;
}

}  // namespace flash_steps

// The walk of one query tile over the keys that it sees, on the device: what
// causal_forward.hpp's causal_q_tile is on the CPU. Kernels of later chapters are built from
// it.
#pragma once

#include <algorithm>

#include "chapters/03_tiled_forward/fold_tile.cuh"
#include "chapters/04_causal_skipping/causal_tiles.hpp"

namespace flash_steps {

// Row q_start + r of Q sees the keys j <= q_start + r + offset. Q, m, l, O of the tile are in
// place; all threads of the block, a multiple of 32, call it, and may read tile.O, tile.m and
// tile.l when it returns. O is not divided by l yet.
__device__ inline void causal_q_tile(const TileMemory& tile, int rows,
                                     global<const float> K,  // (Nk, d)
                                     global<const float> V,  // (Nk, d)
                                     std::int64_t q_start, std::int64_t Nk, std::int64_t offset,
                                     float scale, Visit visit = Visit::skip_hidden) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t Bc = tile.Bc;

  // [begin 04.walk-cuda]
  // no row sees further than the last one: from k_stop on all tiles are hidden, and skipped
  const std::int64_t k_stop =
      visit == Visit::all_tiles ? Nk : visible_keys(q_start + rows - 1, 0, Nk, offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += Bc) {  // [6]
    const int cols = static_cast<int>(std::min(Bc, Nk - k_start));   // the last may be short
    for (int e = thread; e < cols * tile.d; e += threads) {          // [7]
      tile.K[e] = K[k_start * tile.d + e];
      tile.V[e] = V[k_start * tile.d + e];
    }
    for (int r = thread; r < rows; r += threads) {
      tile.visible[r] = static_cast<int>(visible_keys(q_start + r, k_start, cols, offset));
    }
    __syncthreads();  // the tile is complete

    fold_tile(tile, rows, cols, scale);  // [8]-[10]
    __syncthreads();                     // the tile may be overwritten
  }
  // [end]
}

}  // namespace flash_steps

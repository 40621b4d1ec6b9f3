// How the last of the blocks that share rows merges their parts, with no second kernel. Chapter
// 10's blocks call it too.
#pragma once

#include "chapters/03_tiled_forward/fold_tile.cuh"
#include "chapters/09_flash_decoding/merge_splits.cuh"
#include "chapters/09_flash_decoding/splits.hpp"

namespace flash_steps {

// Counts this block, which has stored its part of the rows `at`, in arrived[which], one count
// for all blocks of these rows; if it is the last of them, merges their parts into O and LSE,
// and sets the count back to 0. Called by all threads of the block; overwrites its shared
// memory. Of `in` it reads in.splits and in.sizes.
template <class Decoding>
__device__ void merge_if_last(global<const float> o_part,         // (splits * rows, d)
                              global<const float> lse_part,       // (splits, rows)
                              global<std::uint32_t> arrived,      // one for each `which`
                              global<float> O, HeadsLayout O_at,  // [B, H, Nq, d]
                              global<float> LSE,                  // (B * H * Nq)
                              const Decoding& in, const TileMemory& tile, std::int64_t which,
                              const BlockRows& at) {
  // [begin 09.last-block-cuda]
  const shared<std::uint32_t> before = as<std::uint32_t>(tile.l);
  __threadfence();  // what this thread stored is seen before the count
  __syncthreads();  // all threads have stored: they may be counted, and the tile overwritten
  if (threadIdx.x == 0) before[0] = atomicAdd(arrived + which, 1u);
  __syncthreads();                                                     // the count is there
  if (before[0] != static_cast<std::uint32_t>(in.splits) - 1) return;  // others will merge
  __threadfence();  // what the others stored is read after the count

  const shared<float> lses = dynamic_shared().take<float>(in.splits);
  for (std::int64_t row = at.row; row < at.row + at.rows; ++row) {
    __syncthreads();  // the count, or the LSEs of the last row, may be overwritten
    merge_row(o_part, lse_part, in.splits, in.sizes.rows(), row, static_cast<int>(in.sizes.d),
              lses, O + row_offset(O_at, row), LSE + row);
  }
  if (threadIdx.x == 0) atomicExch(arrived + which, 0u);  // for the next call
  // [end]
}

}  // namespace flash_steps

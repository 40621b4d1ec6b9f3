// The mask on the device: over one tile, and the choice of where it comes from.
#pragma once

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/device/heads.hpp"
#include "common/device/kernel.hpp"

namespace flash_steps {

// Calls use(r, c, kept) for each of the leading visible[r] keys c of each row r of the tile at
// `tile`. All threads of the block call it; a thread has other entries here than where it goes
// through a tile one by one, so barriers must stand before and after.
template <class Mask, class Use>
__device__ void for_each_weight(shared<int> visible, int rows, int cols, const Mask& mask,
                                const TileOrigin& tile, const Use& use) {
  // [begin 12.each-weight-cuda]
  // a thread has four neighbouring weights, as a call of the mask has. A tile need not begin or
  // end at a multiple of 4
  const std::int64_t first_quad = tile.k_start / 4;
  const int quads = static_cast<int>((tile.k_start + cols - 1) / 4 - first_quad) + 1;
  for (int e = static_cast<int>(threadIdx.x); e < rows * quads;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / quads, seen = visible[r];
    const std::int64_t quad = first_quad + e % quads;
    const int c0 = static_cast<int>(4 * quad - tile.k_start);  // the first may be negative
    if (c0 >= seen) continue;
    const unsigned kept = mask.keep4(tile.b, tile.h, tile.q_start + r, quad);
    for (int i = 0; i < 4; ++i) {
      if (c0 + i >= 0 && c0 + i < seen) use(r, c0 + i, (kept >> i & 1) != 0);
    }
  }
  // [end]
}

// Calls use with the stored mask if there is one, else with the computed one of H query heads:
// a kernel is compiled for either.
template <class Use>
void with_mask(const DeviceHeads<std::uint8_t>* stored, const Dropout& dropout, std::int64_t H,
               const Use& use) {
  if (stored) {
    use(StoredMask<global<const std::uint8_t>>{kernel_argument(*stored), stored->layout()});
  } else {
    use(PhiloxMask(dropout, H));
  }
}

}  // namespace flash_steps

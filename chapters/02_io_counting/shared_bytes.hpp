// The shared memory that a kernel of this chapter asks for. No Eigen: nvcc reads this file too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/device/array.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// Bytes of dynamic shared memory for pieces of so many floats; a piece begins at 16 bytes.
inline std::int64_t shared_bytes_for(std::initializer_list<std::int64_t> pieces) {
  std::int64_t bytes = 0;
  for (const std::int64_t floats : pieces) bytes += (4 * floats + 15) / 16 * 16;
  return bytes;
}

// Tiles cut down to a size that fits no device, so that products of their sizes do not
// overflow.
inline Tiling countable(Tiling tile) {
  constexpr std::int64_t kFarTooMany = 1 << 28;
  return {std::min(tile.Br, kFarTooMany), std::min(tile.Bc, kFarTooMany)};
}

// Throws std::invalid_argument, naming both numbers, if a block of the device has less.
inline void require_shared_bytes(const std::string& what, std::int64_t needed) {
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  if (needed <= limit) return;
  require(false, what + " need " + std::to_string(needed) +
                     " bytes of shared memory, but a block of this device has " +
                     std::to_string(limit));
}

inline std::string tiles_text(Tiling tile, std::int64_t d) {
  return "tiles of Br = " + std::to_string(tile.Br) + ", Bc = " + std::to_string(tile.Bc) +
         " with d = " + std::to_string(d);
}

}  // namespace flash_steps

#include "chapters/03_tiled_forward/tile_memory.hpp"

#include <algorithm>
#include <string>

#include "common/device/array.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

std::int64_t tile_shared_bytes(Tiling tile, std::int64_t d) {
  const auto piece = [](std::int64_t count) {
    return (4 * count + 15) / 16 * 16;
  };  // 16-byte steps
  return 2 * piece(tile.Br * d) + 2 * piece(tile.Bc * d) + piece(tile.Br * tile.Bc) +
         4 * piece(tile.Br);
}

Tiling default_tiling(std::int64_t d, std::int64_t shared_bytes) {
  std::int64_t B = 64;
  while (B > 1 && tile_shared_bytes({B, B}, d) > shared_bytes) B /= 2;
  return {B, B};
}

void require_tile_fits(Tiling tile, std::int64_t d) {
  constexpr std::int64_t kFarTooMany = 1 << 28;  // so that no product overflows
  const std::int64_t needed =
      tile_shared_bytes({std::min(tile.Br, kFarTooMany), std::min(tile.Bc, kFarTooMany)}, d);
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  if (needed <= limit) return;
  require(false, "tiles of Br = " + std::to_string(tile.Br) +
                     ", Bc = " + std::to_string(tile.Bc) + " with d = " + std::to_string(d) +
                     " need " + std::to_string(needed) +
                     " bytes of shared memory, but a block of this device has " +
                     std::to_string(limit));
}

}  // namespace flash_steps

#include "chapters/03_tiled_forward/tile_memory.hpp"

#include <algorithm>
#include <string>

#include "common/device/array.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

Tiling largest_tiling(std::int64_t d, std::int64_t shared_bytes, SharedBytes bytes) {
  std::int64_t B = 64;
  while (B > 1 && bytes({B, B}, d) > shared_bytes) B /= 2;
  return {B, B};
}

void require_shared_bytes(const std::string& what, Tiling tile, std::int64_t d,
                          SharedBytes bytes, const std::string& more) {
  constexpr std::int64_t kFarTooMany = 1 << 28;  // so that no product overflows
  const std::int64_t needed =
      bytes({std::min(tile.Br, kFarTooMany), std::min(tile.Bc, kFarTooMany)}, d);
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  if (needed <= limit) return;
  require(false, what + " of Br = " + std::to_string(tile.Br) +
                     ", Bc = " + std::to_string(tile.Bc) + " with d = " + std::to_string(d) +
                     more + " need " + std::to_string(needed) +
                     " bytes of shared memory, but a block of this device has " +
                     std::to_string(limit));
}

std::int64_t tile_shared_bytes(Tiling tile, std::int64_t d) {
  return 2 * shared_floats(tile.Br * d) + 2 * shared_floats(tile.Bc * d) +
         shared_floats(tile.Br * tile.Bc) + 4 * shared_floats(tile.Br);
}

Tiling default_tiling(std::int64_t d, std::int64_t shared_bytes) {
  return largest_tiling(d, shared_bytes, tile_shared_bytes);
}

void require_tile_fits(Tiling tile, std::int64_t d) {
  require_shared_bytes("tiles", tile, d, tile_shared_bytes);
}

}  // namespace flash_steps

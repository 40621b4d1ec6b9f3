#include "chapters/03_tiled_forward/tiling.hpp"

#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {

void require_tiling(Tiling tile) {
  if (tile.Br < 1) require(false, "Br must be at least 1, found " + std::to_string(tile.Br));
  if (tile.Bc < 1) require(false, "Bc must be at least 1, found " + std::to_string(tile.Bc));
}

std::int64_t tile_shared_bytes(Tiling tile, std::int64_t d) {
  const auto piece = [](std::int64_t count) { return (4 * count + 15) / 16 * 16; };
  return 2 * piece(tile.Br * d) + 2 * piece(tile.Bc * d) + piece(tile.Br * tile.Bc) +
         4 * piece(tile.Br);
}

Tiling default_tiling(std::int64_t d, std::int64_t shared_bytes) {
  std::int64_t B = 64;
  while (B > 1 && tile_shared_bytes({B, B}, d) > shared_bytes) B /= 2;
  return {B, B};
}

}  // namespace flash_steps

#include "chapters/06_backward_recompute/backward_memory.hpp"

#include <algorithm>
#include <string>

#include "common/device/array.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

std::int64_t piece(std::int64_t count) { return (4 * count + 15) / 16 * 16; }  // 16-byte steps

// What BackwardMemory (backward_tile.cuh) has.
std::int64_t pair_bytes(Tiling tile, std::int64_t d) {
  return 2 * piece(tile.Br * d) + 2 * piece(tile.Bc * d) + 2 * piece(tile.Br * tile.Bc) +
         4 * piece(tile.Br);
}

std::int64_t larger_shared_bytes(Tiling tile, std::int64_t d) {
  return std::max(key_tile_shared_bytes(tile, d), query_tile_shared_bytes(tile, d));
}

}  // namespace

std::int64_t key_tile_shared_bytes(Tiling tile, std::int64_t d) {
  return pair_bytes(tile, d) + 2 * piece(tile.Bc * d);
}

std::int64_t query_tile_shared_bytes(Tiling tile, std::int64_t d) {
  return pair_bytes(tile, d) + piece(tile.Br * d);
}

Tiling default_backward_tiling(std::int64_t d, std::int64_t shared_bytes) {
  std::int64_t B = 64;
  while (B > 1 && larger_shared_bytes({B, B}, d) > shared_bytes) B /= 2;
  return {B, B};
}

void require_backward_fits(Tiling tile, std::int64_t d) {
  constexpr std::int64_t kFarTooMany = 1 << 28;  // so that no product overflows
  const std::int64_t needed =
      larger_shared_bytes({std::min(tile.Br, kFarTooMany), std::min(tile.Bc, kFarTooMany)}, d);
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  if (needed <= limit) return;
  require(false, "backward tiles of Br = " + std::to_string(tile.Br) +
                     ", Bc = " + std::to_string(tile.Bc) + " with d = " + std::to_string(d) +
                     " need " + std::to_string(needed) +
                     " bytes of shared memory, but a block of this device has " +
                     std::to_string(limit));
}

}  // namespace flash_steps

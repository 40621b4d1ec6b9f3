#include "chapters/06_backward_recompute/backward_memory.hpp"

#include <algorithm>

#include "chapters/03_tiled_forward/tile_memory.hpp"

namespace flash_steps {
namespace {

// What BackwardMemory (backward_tile.cuh) has.
std::int64_t pair_bytes(Tiling tile, std::int64_t d) {
  return 2 * shared_floats(tile.Br * d) + 2 * shared_floats(tile.Bc * d) +
         2 * shared_floats(tile.Br * tile.Bc) + 4 * shared_floats(tile.Br);
}

std::int64_t larger_shared_bytes(Tiling tile, std::int64_t d) {
  return std::max(key_tile_shared_bytes(tile, d), query_tile_shared_bytes(tile, d));
}

}  // namespace

std::int64_t key_tile_shared_bytes(Tiling tile, std::int64_t d) {
  return pair_bytes(tile, d) + 2 * shared_floats(tile.Bc * d);
}

std::int64_t query_tile_shared_bytes(Tiling tile, std::int64_t d) {
  return pair_bytes(tile, d) + shared_floats(tile.Br * d);
}

Tiling default_backward_tiling(std::int64_t d, std::int64_t shared_bytes) {
  return largest_tiling(d, shared_bytes, larger_shared_bytes);
}

void require_backward_fits(Tiling tile, std::int64_t d) {
  require_shared_bytes("backward tiles", tile, d, larger_shared_bytes);
}

}  // namespace flash_steps

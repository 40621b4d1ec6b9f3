// How much on-chip memory tiles take. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

#include "common/tensor/tiling.hpp"

namespace flash_steps {

// Bytes of shared memory that a block needs for one query tile and one key tile: Q, O (Br, d),
// K, V (Bc, d), S (Br, Bc) and four numbers a row, all of 4 bytes. This is the papers' M.
std::int64_t tile_shared_bytes(Tiling tile, std::int64_t d);

// The largest Br = Bc that is a power of two, at most 64, and whose tiles fit into
// shared_bytes. At least 1: whether even that fits is require_tile_fits's business.
Tiling default_tiling(std::int64_t d, std::int64_t shared_bytes);

// Throws std::invalid_argument, naming both numbers, if the tiles need more shared memory than
// a block of the device has.
void require_tile_fits(Tiling tile, std::int64_t d);

}  // namespace flash_steps

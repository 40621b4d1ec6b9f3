// How much on-chip memory the tiles of the backward pass take. No Eigen: nvcc reads this file
// too.
#pragma once

#include <cstdint>

#include "common/tensor/tiling.hpp"

namespace flash_steps {

// Bytes of shared memory of a block that keeps a key tile: Q, dO (Br, d), K, V, dK, dV (Bc, d),
// P, dS (Br, Bc) and four numbers a row, all of 4 bytes.
std::int64_t key_tile_shared_bytes(Tiling tile, std::int64_t d);

// And of one that keeps a query tile: the same with dQ (Br, d) in the place of dK and dV.
std::int64_t query_tile_shared_bytes(Tiling tile, std::int64_t d);

// The largest Br = Bc that is a power of two, at most 64, and with which both fit into
// shared_bytes. At least 1: whether even that fits is require_backward_fits's business.
Tiling default_backward_tiling(std::int64_t d, std::int64_t shared_bytes);

// Throws std::invalid_argument, naming both numbers, if the larger of the two is more than a
// block of the device has.
void require_backward_fits(Tiling tile, std::int64_t d);

}  // namespace flash_steps

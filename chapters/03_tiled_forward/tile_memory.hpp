// How much on-chip memory tiles take. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <string>

#include "common/tensor/tiling.hpp"

namespace flash_steps {

// ---- what later chapters use for their own tiles

// Bytes of `count` floats in dynamic shared memory, where arrays begin at multiples of 16.
constexpr std::int64_t shared_floats(std::int64_t count) { return (4 * count + 15) / 16 * 16; }

using SharedBytes = std::int64_t (*)(Tiling tile, std::int64_t d);

// The largest Br = Bc that is a power of two, at most 64, and for which bytes(tile, d) is at
// most shared_bytes. At least 1, whether that fits or not.
Tiling largest_tiling(std::int64_t d, std::int64_t shared_bytes, SharedBytes bytes);

// Throws std::invalid_argument if bytes(tile, d) is more than a block of the device has: "WHAT
// of Br = .., Bc = .. with d = ..MORE need .. bytes of shared memory, but ...".
void require_shared_bytes(const std::string& what, Tiling tile, std::int64_t d,
                          SharedBytes bytes, const std::string& more = "");

// ---- the tiles of the forward pass

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

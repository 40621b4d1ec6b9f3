// How Q, K and V are cut into tiles. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

namespace flash_steps {

// Br query rows and Bc keys to a tile, each at least 1; neither need divide anything. The
// number of tiles is Tr = ceil(Nq / Br), Tc = ceil(Nk / Bc).
struct Tiling {
  std::int64_t Br = 64, Bc = 64;
};

// Throws std::invalid_argument unless Br >= 1 and Bc >= 1.
void require_tiling(Tiling tile);

// Bytes of shared memory that a block of tiled_forward_kernel needs: the tiles Q, O (Br, d), K,
// V (Bc, d), S (Br, Bc) and four numbers a row, all of 4 bytes. This is the papers' M.
std::int64_t tile_shared_bytes(Tiling tile, std::int64_t d);

// The largest Br = Bc that is a power of two, at most 64, and whose tiles fit into
// shared_bytes. At least 1: whether even that fits is the launch's business.
Tiling default_tiling(std::int64_t d, std::int64_t shared_bytes);

}  // namespace flash_steps

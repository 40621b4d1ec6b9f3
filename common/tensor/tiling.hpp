// How Q, K and V are cut into tiles. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {

// Br query rows and Bc keys to a tile, each at least 1; neither need divide anything. The
// number of tiles is Tr = ceil(Nq / Br), Tc = ceil(Nk / Bc).
struct Tiling {
  std::int64_t Br = 64, Bc = 64;
};

// Throws std::invalid_argument unless Br >= 1 and Bc >= 1.
inline void require_tiling(Tiling tile) {
  if (tile.Br < 1) require(false, "Br must be at least 1, found " + std::to_string(tile.Br));
  if (tile.Bc < 1) require(false, "Bc must be at least 1, found " + std::to_string(tile.Bc));
}

}  // namespace flash_steps

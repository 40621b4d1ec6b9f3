// Reductions over the 32 lanes of a warp, for kernels of this and later chapters.
#pragma once

#include "common/device/kernel.hpp"

namespace flash_steps {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The maximum of the 32 lanes' values, in every lane. All lanes of the warp must call it. After
// the round with distance n, each lane holds the maximum over a group of 2n lanes
// ("butterfly").
__device__ inline float warp_max(float value) {
  for (int n = 1; n < kWarpSize; n *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, n));
  }
  return value;
}

// The sum of the 32 lanes' values, in every lane, the same bits in each.
__device__ inline float warp_sum(float value) {
  for (int n = 1; n < kWarpSize; n *= 2) value += __shfl_xor_sync(kAllLanes, value, n);
  return value;
}

}  // namespace flash_steps

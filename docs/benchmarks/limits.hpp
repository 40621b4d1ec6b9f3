// The device half of limits.cpp. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

#include "common/device/array.hpp"

namespace flash_steps {

// Every thread of `blocks` blocks does `steps` rounds of 64 float32
// multiply-adds, and stores one number to out (blocks * kFmaThreads).
inline constexpr int kFmaThreads = 256, kFmasARound = 64;
void multiply_add(DeviceArray<float>& out, int steps);

}  // namespace flash_steps

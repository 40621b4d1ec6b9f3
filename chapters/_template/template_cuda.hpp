// Chapter NN on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include "common/device/array.hpp"

namespace flash_steps {

// The twin of scale_cpu in float32: y = a * x, x (N) -> y (N), a thread to an element; N may be
// 0. Asynchronous on a GPU. Throws std::invalid_argument if the sizes differ.
void scale_cuda(const DeviceArray<float>& x, DeviceArray<float>& y, float a);

}  // namespace flash_steps

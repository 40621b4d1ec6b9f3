// Chapter 08, the queries outside, on the device. No Eigen: nvcc and the host compiler both
// read this file.
#pragma once

#include <optional>

#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of q_outer_cpu in float32: Q (Nq, d), K and V (Nk, d) -> O (Nq, d), LSE (Nq), one
// block to a query tile. The device counts what it moves (device_traffic). Asynchronous on a
// GPU. Besides what the CPU version throws, std::invalid_argument if the tiles do not fit into
// the device's shared memory.
void q_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                  const DeviceMatrix<float>& V, DeviceMatrix<float>& O, DeviceArray<float>& LSE,
                  Tiling tile = {}, bool causal = false, std::optional<double> scale = {});

}  // namespace flash_steps

// Chapter 07 on the device, forward. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <optional>

#include "common/device/array.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of batched_forward_cpu in float32: Q [B, H, Nq, d], K, V [B, Hkv, Nk, d] -> O [B, H,
// Nq, d], LSE (B * H, Nq), one block to a query tile of a head. Each array has strides of its
// own. Asynchronous on a GPU. Besides what the CPU version throws, std::invalid_argument if the
// tiles do not fit into the device's shared memory, or for more than 2^31 - 1 blocks.
void batched_forward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                          const DeviceHeads<float>& V, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, Tiling tile = {}, bool causal = false,
                          std::optional<double> scale = {});

}  // namespace flash_steps

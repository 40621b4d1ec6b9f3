// Chapter 12's backward pass on the device. No Eigen: nvcc and the host compiler both read this
// file.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of dropout_backward_cpu in float32: one kernel for dK and dV, a block to a key tile,
// and one for dQ, a block to a query tile, so that no two blocks add to the same numbers.
// Asynchronous on a GPU; allocates nothing. Besides what the CPU version throws,
// std::invalid_argument if the tiles do not fit into the device's shared memory
// (06_backward_recompute/backward_memory.hpp), or for more than 2^31 - 1 blocks.
void dropout_backward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                           const DeviceHeads<float>& V, const DeviceHeads<float>& O,
                           const DeviceMatrix<float>& LSE, const DeviceHeads<float>& dO,
                           DeviceMatrix<float>& delta, DeviceHeads<float>& dQ,
                           DeviceHeads<float>& dK, DeviceHeads<float>& dV,
                           const Dropout& dropout, Tiling tile = {}, bool causal = false,
                           std::optional<double> scale = {},
                           const DeviceHeads<std::uint8_t>* mask = nullptr);

}  // namespace flash_steps

// Chapter 07 on the device, backward. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <optional>

#include "common/device/array.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of batched_backward_cpu in float32: three kernels, for delta, for dK and dV (a block
// to a key tile of a key/value head, which visits all query heads of its group), and for dQ (a
// block to a query tile of a head). No atomics: the same bits at every run. Asynchronous on a
// GPU; allocates nothing. Besides what the CPU version throws, std::invalid_argument if the
// tiles do not fit into the device's shared memory (chapter 06's backward_memory.hpp), or for
// more than 2^31 - 1 blocks.
void batched_backward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                           const DeviceHeads<float>& V, const DeviceHeads<float>& O,
                           const DeviceMatrix<float>& LSE, const DeviceHeads<float>& dO,
                           DeviceMatrix<float>& delta, DeviceHeads<float>& dQ,
                           DeviceHeads<float>& dK, DeviceHeads<float>& dV, Tiling tile = {},
                           bool causal = false, std::optional<double> scale = {},
                           const DeviceMatrix<float>* dLSE = nullptr);

}  // namespace flash_steps

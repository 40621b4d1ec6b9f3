// Chapter 06 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <optional>

#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// Which loop is outside, and so which gradients stay on chip.
enum class BackwardForm {
  two_passes,  // a kernel for dK and dV, a block to a key tile; one for dQ, a block to a query
               // tile. P and dP are computed twice; the same bits at every run
  atomic_dQ,   // one kernel, a block to a key tile; dQ is added up in global memory by atomics.
               // P and dP are computed once; dQ's last bits depend on which block comes first
};

// The twin of backward_recompute_cpu in float32. Asynchronous on a GPU; allocates nothing.
// Besides what the CPU version throws, std::invalid_argument if the tiles do not fit into the
// device's shared memory (backward_memory.hpp), whichever form it is.
void backward_recompute_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                             const DeviceMatrix<float>& V, const DeviceMatrix<float>& O,
                             const DeviceArray<float>& m, const DeviceArray<float>& l,
                             const DeviceMatrix<float>& dO, DeviceArray<float>& delta,
                             DeviceMatrix<float>& dQ, DeviceMatrix<float>& dK,
                             DeviceMatrix<float>& dV, Tiling tile = {}, bool causal = false,
                             std::optional<double> scale = {},
                             const DeviceArray<float>* dLSE = nullptr,
                             BackwardForm form = BackwardForm::two_passes);

}  // namespace flash_steps

// Chapter 04 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <optional>

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "common/device/array.hpp"

namespace flash_steps {

// The twin of causal_forward_cpu in float32: Q (Nq, d), K and V (Nk, d) -> O (Nq, d), one block
// to a query tile. Asynchronous on a GPU. Besides what the CPU version throws,
// std::invalid_argument if the tiles do not fit into the device's shared memory.
void causal_forward_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                         const DeviceMatrix<float>& V, DeviceMatrix<float>& O, Tiling tile = {},
                         bool causal = true, std::optional<double> scale = {},
                         Visit visit = Visit::skip_hidden);

}  // namespace flash_steps

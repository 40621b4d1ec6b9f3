// Chapter 12's forward pass on the device. No Eigen: nvcc and the host compiler both read this
// file.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of dropout_forward_cpu in float32, one block to a query tile. Asynchronous on a GPU.
// Besides what the CPU version throws, std::invalid_argument if the tiles do not fit into the
// device's shared memory, or H or B is more than a grid may have.
void dropout_forward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                          const DeviceHeads<float>& V, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, const Dropout& dropout, Tiling tile = {},
                          bool causal = false, std::optional<double> scale = {},
                          const DeviceHeads<std::uint8_t>* mask = nullptr);

// The twin of dropout_mask_cpu: the same bits.
void dropout_mask_cuda(DeviceHeads<std::uint8_t>& kept, const Dropout& dropout);

}  // namespace flash_steps

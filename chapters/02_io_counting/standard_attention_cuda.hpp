// Standard attention on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <optional>

#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of standard_attention_cpu in float32: three kernels, one after another, with the
// scores (Nq, Nk) in the device's memory. What they move, device_traffic() knows: 4 bytes for
// each element of predict_standard. Asynchronous on a GPU. Besides what the CPU version throws,
// std::invalid_argument if the tiles, or a row of S, do not fit into the device's shared
// memory.
void standard_attention_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                             const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                             Tiling tile = {}, std::optional<double> scale = {});

// The three passes by themselves. S is (Nq, Nk); the softmax turns it into P in place.
void standard_scores_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                          DeviceMatrix<float>& S, Tiling tile, float scale);
void standard_softmax_cuda(DeviceMatrix<float>& S);
void standard_values_cuda(const DeviceMatrix<float>& P, const DeviceMatrix<float>& V,
                          DeviceMatrix<float>& O, Tiling tile);

}  // namespace flash_steps

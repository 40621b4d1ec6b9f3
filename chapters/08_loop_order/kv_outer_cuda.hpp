// Chapter 08, the keys outside, on the device. No Eigen: nvcc and the host compiler both read
// this file.
#pragma once

#include <optional>

#include "chapters/08_loop_order/normalise.hpp"
#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twin of kv_outer_cpu in float32: Q (Nq, d), K and V (Nk, d) -> O (Nq, d), m, l (Nq), one
// block to a K/V tile. At each Q tile the blocks take turns, in the order of the keys: the same
// bits at every run. Asynchronous on a GPU.
//
// turns (1 + Tr), Tr = ceil(Nq / Br), is where the blocks agree on whose turn it is; what it
// holds on entry does not matter. Besides what the CPU version throws, std::invalid_argument if
// turns has another size, or if the tiles do not fit into the device's shared memory.
void kv_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                   const DeviceMatrix<float>& V, DeviceMatrix<float>& O, DeviceArray<float>& m,
                   DeviceArray<float>& l, DeviceArray<unsigned>& turns, Tiling tile = {},
                   bool causal = false, std::optional<double> scale = {},
                   Normalise normalise = Normalise::every_tile);

// The two launches that kv_outer_cuda consists of, for those who count: O = 0, m = -inf, l = 0,
// turns = 0; then the walk, which moves predict_loop_order(kv_outer, ...).
void kv_outer_start_cuda(DeviceMatrix<float>& O, DeviceArray<float>& m, DeviceArray<float>& l,
                         DeviceArray<unsigned>& turns);
void kv_outer_walk_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                        DeviceArray<float>& m, DeviceArray<float>& l,
                        DeviceArray<unsigned>& turns, Tiling tile = {}, bool causal = false,
                        std::optional<double> scale = {},
                        Normalise normalise = Normalise::every_tile);

}  // namespace flash_steps

// The walks on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The twins of walk_q_outer_cpu and walk_kv_outer_cpu: the first with one block to a Q tile;
// the second with a single block, since all Q tiles share the K/V tile that is on chip. What
// they move, device_traffic() knows, 4 bytes an element. Asynchronous on a GPU. Besides what
// the CPU versions throw, std::invalid_argument if the tiles do not fit into the device's
// shared memory.
void walk_q_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                       const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                       DeviceArray<float>& LSE, Tiling tile = {});
void walk_kv_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                        DeviceArray<float>& m, DeviceArray<float>& l, Tiling tile = {});

}  // namespace flash_steps

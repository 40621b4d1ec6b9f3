// The notes' loop over the blocks of a cache, with the barriers that they have and with those
// that it needs.
#pragma once

#include "common/device/array.hpp"

namespace flash_steps::test {

// O (Nq) = softmax(Q K^T) V for one head of one channel whose cache K, V (Nk) is walked in
// tiles of Bc keys, Nq <= 128. Without the second barrier, a tile is overwritten while others
// still read it.
void walk_in_shared_memory_cuda(const DeviceArray<float>& Q, const DeviceArray<float>& K,
                                const DeviceArray<float>& V, DeviceArray<float>& O, int Bc,
                                bool second_barrier);

}  // namespace flash_steps::test

// Chapter 11 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <cstdint>

#include "chapters/11_wrong_vs_correct_merge/merge_rule.hpp"
#include "common/device/array.hpp"

namespace flash_steps {

// The twin of merge_parts_cpu in float32: m, l (T), o (T, d) -> O (d), one block, a thread to a
// channel. state (2) receives m and l. Asynchronous on a GPU. Throws as the CPU version does,
// and if state has not two elements.
void merge_parts_cuda(const DeviceArray<float>& m, const DeviceArray<float>& l,
                      const DeviceMatrix<float>& o, DeviceArray<float>& O,
                      DeviceArray<float>& state, MergeRule rule = MergeRule::correct,
                      double fixed_max = 0);

// The twin of merge_scores_cpu in float32: x (N) -> p (N), one block of threads, which shares
// out one block of Bc scores after the other. state (2) receives m and l. Asynchronous on a
// GPU. Besides what the CPU version throws, std::invalid_argument if state has not two
// elements, if p is x, or if a block has more than 131072 scores: the float32 sum of one thread
// would lose digits.
void merge_scores_cuda(const DeviceArray<float>& x, DeviceArray<float>& p,
                       DeviceArray<float>& state, std::int64_t Bc,
                       MergeRule rule = MergeRule::correct, double fixed_max = 0);

}  // namespace flash_steps

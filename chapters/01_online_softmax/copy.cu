// The yardstick of chapter 01's benchmark: a kernel that only moves data.
#include <algorithm>
#include <string>

#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "common/device/kernel.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;
constexpr int kLoads = 4;  // of 16 bytes, that a thread has on their way at the same time

// One thread: every so many-th float4, and at most one of the N % 4 elements behind the last.
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    copy_kernel(global<const float> from, global<float> to, std::int64_t N) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const global<const float4> from4 = as<const float4>(from);
  const global<float4> to4 = as<float4>(to);
  std::int64_t v = first;
  for (; v + (kLoads - 1) * step < N / 4; v += kLoads * step) {
    float4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = from4[v + k * step];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) to4[v + k * step] = loaded[k];
  }
  for (; v < N / 4; v += step) to4[v] = from4[v];
  if (first < N % 4) to[N / 4 * 4 + first] = from[N / 4 * 4 + first];
}

}  // namespace

void copy_cuda(const DeviceArray<float>& from, DeviceArray<float>& to) {
  const std::int64_t N = from.size();
  require(to.size() == N, "the copy must be as long as the original, " + std::to_string(N) +
                              ", found " + std::to_string(to.size()));
  require(&to != &from, "the copy must not be the original");
  if (N == 0) return;
  const std::int64_t most = kBlocksPerMultiprocessor * device_limits().multiprocessors;
  const std::int64_t blocks = std::clamp<std::int64_t>(ceil_div(N, 4 * kThreads), 1, most);
  launch(copy_kernel, {blocks, kThreads}, from, to, N);
}

}  // namespace flash_steps

// The yardstick of chapter 01's benchmark: a kernel that only moves data.
#include <algorithm>
#include <string>

#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "common/device/kernel.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 512;

// One thread: every so many-th float4, and at most one of the N % 4 elements behind the last.
__global__ void copy_kernel(global<const float> from, global<float> to, std::int64_t N) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const global<const float4> from4 = as<const float4>(from);
  const global<float4> to4 = as<float4>(to);
#pragma unroll 4
  for (std::int64_t v = first; v < N / 4; v += step) to4[v] = from4[v];
  if (first < N % 4) to[N / 4 * 4 + first] = from[N / 4 * 4 + first];
}

}  // namespace

void copy_cuda(const DeviceArray<float>& from, DeviceArray<float>& to) {
  const std::int64_t N = from.size();
  require(to.size() == N, "the copy must be as long as the original, " + std::to_string(N) +
                              ", found " + std::to_string(to.size()));
  require(&to != &from, "the copy must not be the original");
  if (N == 0) return;
  const std::int64_t most = 4 * device_limits().multiprocessors;
  const std::int64_t blocks = std::clamp<std::int64_t>(ceil_div(N, 4 * kThreads), 1, most);
  launch(copy_kernel, {blocks, kThreads}, from, to, N);
}

}  // namespace flash_steps

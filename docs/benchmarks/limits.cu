// A kernel that does nothing but float32 multiply-adds in registers.
#include "docs/benchmarks/limits.hpp"

#include "common/device/kernel.hpp"

namespace flash_steps {
namespace {

// Eight chains, so that one multiply-add need not wait for the one before.
__global__ void multiply_add_kernel(global<float> out,  // (blocks * kFmaThreads)
                                    int steps) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const float a = 1.0f + 1e-7f * static_cast<float>(threadIdx.x);
  float x[8];
  for (int chain = 0; chain < 8; ++chain) x[chain] = static_cast<float>(chain);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int turn = 0; turn < kFmasARound / 8; ++turn) {
#pragma unroll
      for (int chain = 0; chain < 8; ++chain) x[chain] = x[chain] * a + a;
    }
  }
  float sum = 0.0f;
  for (int chain = 0; chain < 8; ++chain) sum += x[chain];
  out[i] = sum;
}

}  // namespace

void multiply_add(DeviceArray<float>& out, int steps) {
  launch(multiply_add_kernel, {out.size() / kFmaThreads, kFmaThreads}, out, steps);
}

}  // namespace flash_steps

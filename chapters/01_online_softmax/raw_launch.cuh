// A launch without common/device: one kernel, and the host code around it.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "chapters/01_online_softmax/raw_launch.hpp"
#include "common/device/array.hpp"

namespace flash_steps {
namespace {

// One thread: one element, if there is one for it.
__global__ void weights_kernel(const float* x,  // (N)
                               float* p,        // (N)
                               int N, float m, float l) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < N) p[i] = expf(x[i] - m) / l;  // [8]
}

// Every call of CUDA may fail, and says so only to those who ask.
void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string("weights_raw: ") + call + ": " + cudaGetErrorString(status));
}

}  // namespace

std::vector<float> weights_raw(const std::vector<float>& x, float m, float l) {
  const int N = static_cast<int>(x.size());
  std::vector<float> p(x.size());
  if (N == 0) return p;  // a grid without blocks cannot be launched
  // [begin 01.raw-launch-cuda]
  const std::size_t bytes = x.size() * sizeof(float);
  float *device_x = nullptr, *device_p = nullptr;
  check(cudaMalloc(&device_x, bytes), "cudaMalloc");
  check(cudaMalloc(&device_p, bytes), "cudaMalloc");
  check(cudaMemcpy(device_x, x.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");

  const int threads = 256, blocks = (N + threads - 1) / threads;  // the last block may be short
  weights_kernel<<<blocks, threads>>>(device_x, device_p, N, m, l);
  check(cudaGetLastError(), "the launch");  // which itself returns nothing

  // waits until the kernel is done
  check(cudaMemcpy(p.data(), device_p, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaFree(device_x), "cudaFree");
  check(cudaFree(device_p), "cudaFree");
  // [end]
  return p;
}

}  // namespace flash_steps

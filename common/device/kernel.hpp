// What a .cu file includes to write and launch kernels. Compiled by nvcc it is CUDA, thinly
// dressed; compiled by the host compiler the simulator stands in. A kernel reads the same for
// both:
//
//   __global__ void double_kernel(global<const float> x, global<float> y, std::int64_t N) {
//     const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
//     if (i < N) y[i] = 2.0f * x[i];
//   }
//   launch(double_kernel, {blocks, threads}, x, y, x.size());   // x, y: DeviceArray<float>
//
//   global<T>           a pointer into global memory: T* __restrict__
//   shared<T>           a pointer into shared memory, taken from dynamic_shared
//   shared_array<T, N>  a __shared__ array of fixed size
//   as<const float4>(p) the same memory in 16-byte pieces
#pragma once

#if defined(__CUDACC__)
#include "common/device/cuda.cuh"
#else
#include "common/simulator/cuda.hpp"
#endif

// Chapter 01 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <cstdint>

#include "common/device/array.hpp"

namespace flash_steps {

// How many threads share the work on one vector.
enum class SoftmaxWidth { thread, block, grid };

// The twin of online_softmax_cpu in float32: p = softmax(x), x (N) -> p (N); N may be 0.
//
// states (1 + blocks, 2) receives m and l of x in row 0. On the grid, each further row is a
// block of threads, and receives m and l of that block's part of x; thread and block need row 0
// only. The same inputs and the same number of blocks give the same bits. Asynchronous on a
// GPU.
//
// Throws std::invalid_argument if sizes do not fit, if p is x, or if a thread would have to
// take more than 131072 elements: l is a float32 sum, of which each addition may cost 2^-24.
void online_softmax_cuda(const DeviceArray<float>& x, DeviceArray<float>& p,
                         DeviceMatrix<float>& states, SoftmaxWidth width = SoftmaxWidth::grid);

// How many blocks keep this device busy with a vector of N elements; at least 1.
std::int64_t online_softmax_blocks(std::int64_t N);

// The twin of online_softmax_rows_cpu in float32: X (rows, cols) -> P (rows, cols), one block
// to a row; either size may be 0. As much of a row as fits stays in shared memory, so that it
// is read from global memory once. Asynchronous on a GPU. Throws as above.
void online_softmax_rows_cuda(const DeviceMatrix<float>& X, DeviceMatrix<float>& P);

}  // namespace flash_steps

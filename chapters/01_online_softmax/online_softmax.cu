// Chapter 01: online softmax on the device, by one thread, by a block, by the whole grid, and
// row by row. The equations and the marks [n] are those of online_softmax.hpp.
#include <algorithm>
#include <string>

#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "chapters/01_online_softmax/softmax_state.cuh"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

void require_terms(std::int64_t N, std::int64_t threads) {
  constexpr std::int64_t kLimit = 131072;
  const std::int64_t terms = ceil_div(N, threads);
  if (terms > kLimit) {
    require(false, "online softmax: each thread would take " + std::to_string(terms) +
                       " elements, more than " + std::to_string(kLimit) +
                       ", and its float32 sum lose digits: let more threads share the work");
  }
}

constexpr int kMaxThreads = 1024;            // of a block, where one block does it all
constexpr int kGridThreads = 512;            // of a block, where the whole grid shares the work
constexpr int kBlocksPerMultiprocessor = 2;  // then all blocks of the grid are at work at once

// ---- one thread

// The state of x[first], x[first + step], ..., in one pass. The twin of the CPU's
// softmax_state: no more than 128 elements are added in a row, then the run is merged.
__device__ SoftmaxState<float> softmax_state(global<const float> x, std::int64_t first,
                                             std::int64_t step, std::int64_t N) {
  SoftmaxState<float> state;  // [1] [2]
  // [begin 01.one-pass-cuda]
  for (std::int64_t i = first; i < N;) {  // [3]
    SoftmaxState<float> run;
    for (int n = 0; n < 128 && i < N; ++n, i += step) push(run, x[i]);
    state = merge(state, run);
  }
  // [end]
  return state;
}

// One thread: everything.
__global__ void online_softmax_thread_kernel(global<const float> x,  // (N)
                                             global<float> p,        // (N)
                                             global<float> states,   // (1, 2)
                                             std::int64_t N) {
  const SoftmaxState<float> state = softmax_state(x, 0, 1, N);

  const Normaliser weight(state);
  for (std::int64_t i = 0; i < N; ++i) p[i] = weight(x[i]);  // [7] [8]
  states[0] = state.m;
  states[1] = state.l;
}

void launch_thread(const DeviceArray<float>& x, DeviceArray<float>& p,
                   DeviceMatrix<float>& states) {
  require_terms(x.size(), 1);
  launch(online_softmax_thread_kernel, {1, 1}, x, p, states, x.size());
}

// ---- one block

// One block: everything. One thread: every blockDim.x-th element, so that neighbouring threads
// read neighbouring floats.
__global__ void online_softmax_block_kernel(global<const float> x,  // (N)
                                            global<float> p,        // (N)
                                            global<float> states,   // (1, 2)
                                            std::int64_t N) {
  // [begin 01.block-cuda]
  const SoftmaxState<float> mine = softmax_state(x, threadIdx.x, blockDim.x, N);
  const SoftmaxState<float> state = block_merge(mine);

  const Normaliser weight(state);
  for (std::int64_t i = threadIdx.x; i < N; i += blockDim.x) p[i] = weight(x[i]);
  // [end]
  if (threadIdx.x == 0) {
    states[0] = state.m;
    states[1] = state.l;
  }
}

void launch_block(const DeviceArray<float>& x, DeviceArray<float>& p,
                  DeviceMatrix<float>& states) {
  require_terms(x.size(), kMaxThreads);
  launch(online_softmax_block_kernel, {1, kMaxThreads}, x, p, states, x.size());
}

// ---- 16 bytes at a time

// x[v], x[v + step], ... as far as x goes, which is `vectors` float4s; then -inf, which adds
// nothing to a state.
__device__ void load(float4 (&loaded)[kLoads], global<const float4> x, std::int64_t v,
                     std::int64_t step, std::int64_t vectors) {
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const bool there = v + k * step < vectors;
    loaded[k] =
        there ? x[v + k * step] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  }
}

// ---- the whole grid

// The first half: one block reduces its part of x to a state of its own. One thread: every so
// many-th float4 (16 bytes a load), and at most one of the N % 4 elements behind the last.
__global__ void __launch_bounds__(kGridThreads, kBlocksPerMultiprocessor)
    online_softmax_partial_kernel(global<const float> x,  // (N)
                                  global<float> states,   // (1 + blocks, 2)
                                  std::int64_t N) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const global<const float4> x4 = as<const float4>(x);

  // [begin 01.partial-cuda]
  SoftmaxState<float> state;
  for (std::int64_t v = first; v < N / 4; v += kLoads * step) {
    float4 loaded[kLoads];
    load(loaded, x4, v, step, N / 4);
    push(state, loaded);
  }
  if (first < N % 4) push(state, x[N / 4 * 4 + first]);

  state = block_merge(state);
  if (threadIdx.x == 0) {
    states[2 + 2 * blockIdx.x] = state.m;
    states[3 + 2 * blockIdx.x] = state.l;
  }
  // [end]
}

// The second half, launched when the first is done: a launch is the only barrier that all
// blocks of a grid share. Every block merges the states of all blocks, then writes its part of
// p.
__global__ void __launch_bounds__(kGridThreads, kBlocksPerMultiprocessor)
    online_softmax_finish_kernel(global<const float> x,  // (N)
                                 global<float> p,        // (N)
                                 global<float> states,   // (1 + blocks, 2)
                                 std::int64_t N) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const global<const float4> x4 = as<const float4>(x);
  const global<float4> p4 = as<float4>(p);

  // [begin 01.finish-cuda]
  SoftmaxState<float> state;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
    state = merge(state, {states[2 + 2 * b], states[3 + 2 * b]});
  }
  state = block_merge(state);

  // from the end to the front: what the first half read last is still in the L2 cache
  const Normaliser weight(state);
  std::int64_t v = N / 4 - 1 - first;
  for (; v >= (kLoads - 1) * step; v -= kLoads * step) {
    float4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = x4[v - k * step];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) p4[v - k * step] = weight(loaded[k]);
  }
  for (; v >= 0; v -= step) p4[v] = weight(x4[v]);
  if (first < N % 4) p[N / 4 * 4 + first] = weight(x[N / 4 * 4 + first]);
  // [end]
  if (first == 0) {
    states[0] = state.m;
    states[1] = state.l;
  }
}

void launch_partial(const DeviceArray<float>& x, DeviceMatrix<float>& states) {
  const std::int64_t blocks = states.rows() - 1;
  require_terms(x.size(), blocks * kGridThreads);
  launch(online_softmax_partial_kernel, {blocks, kGridThreads}, x, states, x.size());
}

void launch_finish(const DeviceArray<float>& x, DeviceArray<float>& p,
                   DeviceMatrix<float>& states) {
  const std::int64_t blocks = states.rows() - 1;
  launch(online_softmax_finish_kernel, {blocks, kGridThreads}, x, p, states, x.size());
}

// ---- row by row

// One block: a row. One thread: every blockDim.x-th float4 of the row, and at most one of the
// single floats at its ends (a 16-byte load needs an address that 16 divides, which leaves up
// to three floats before the first and up to three behind the last). The first `kept` float4s
// stay in shared memory; no barrier, since only the thread that stored one reads it again.
__global__ void online_softmax_rows_kernel(global<const float> X,  // (rows, cols)
                                           global<float> P,        // (rows, cols)
                                           std::int64_t cols, std::int64_t kept) {
  const std::int64_t thread = threadIdx.x, threads = blockDim.x;
  const std::int64_t begin = blockIdx.x * cols, head = -begin & 3;
  const std::int64_t vectors = (cols - head) / 4, singles = cols - 4 * vectors;
  const std::int64_t single = begin + thread + (thread < head ? 0 : 4 * vectors);
  const std::int64_t aligned = vectors > 0 ? begin + head : 0;
  const global<const float4> X4 = as<const float4>(X + aligned);
  const global<float4> P4 = as<float4>(P + aligned);
  const shared<float4> row = dynamic_shared().take<float4>(kept);

  // [begin 01.rows-cuda]
  SoftmaxState<float> state;
  for (std::int64_t v = thread; v < vectors; v += kLoads * threads) {
    float4 loaded[kLoads];
    load(loaded, X4, v, threads, vectors);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (v + k * threads < kept) row[v + k * threads] = loaded[k];
    }
    push(state, loaded);
  }
  const float end = thread < singles ? X[single] : -INFINITY;  // -inf adds nothing
  push(state, end);
  state = block_merge(state);

  const Normaliser weight(state);
#pragma unroll 4
  for (std::int64_t v = thread; v < vectors; v += threads) {
    if (v < kept) {
      P4[v] = weight(row[v]);
    } else {
      P4[v] = weight(X4[v]);
    }
  }
  if (thread < singles) P[single] = weight(end);
  // [end]
}

void launch_rows(const DeviceMatrix<float>& X, DeviceMatrix<float>& P) {
  // 16 elements a thread, in whole warps, as long as that makes a block
  const std::int64_t cols = X.cols();
  const std::int64_t threads =
      std::clamp<std::int64_t>(ceil_div(cols, 16 * 32) * 32, 32, kMaxThreads);
  require_terms(cols, threads);
  // shared memory less what block_merge has for itself
  const std::int64_t room = (device_limits().shared_bytes_per_block - 1024) / 16;
  const std::int64_t kept = std::min(cols / 4, room);
  launch(online_softmax_rows_kernel, {X.rows(), threads, 16 * kept}, X, P, cols, kept);
}

}  // namespace

std::int64_t online_softmax_blocks(std::int64_t N) {
  const std::int64_t most = kBlocksPerMultiprocessor * device_limits().multiprocessors;
  return std::clamp<std::int64_t>(ceil_div(N, 4 * kGridThreads), 1, most);
}

void online_softmax_cuda(const DeviceArray<float>& x, DeviceArray<float>& p,
                         DeviceMatrix<float>& states, SoftmaxWidth width) {
  require(p.size() == x.size(), "p must be as long as x, " + std::to_string(x.size()) +
                                    ", found " + std::to_string(p.size()));
  require(&p != &x, "p must not be x: the kernels count on two arrays");
  const std::int64_t rows =
      std::max<std::int64_t>(states.rows(), width == SoftmaxWidth::grid ? 2 : 1);
  require_shape("states", shape_of(states), {rows, 2});
  switch (width) {
    case SoftmaxWidth::thread:
      return launch_thread(x, p, states);
    case SoftmaxWidth::block:
      return launch_block(x, p, states);
    case SoftmaxWidth::grid:
      launch_partial(x, states);
      return launch_finish(x, p, states);
  }
}

void online_softmax_rows_cuda(const DeviceMatrix<float>& X, DeviceMatrix<float>& P) {
  require_shape("P", shape_of(P), shape_of(X));
  require(&P != &X, "P must not be X: the kernels count on two arrays");
  if (X.size() > 0) launch_rows(X, P);
}

}  // namespace flash_steps

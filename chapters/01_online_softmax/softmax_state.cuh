// The state of an online softmax on the device: what one thread does to it, how the threads of
// a warp and of a block put theirs together. Kernels of later chapters are built from it.
#pragma once

#include "chapters/01_online_softmax/softmax_state.hpp"
#include "chapters/01_online_softmax/warp.cuh"
#include "common/device/kernel.hpp"

namespace flash_steps {

// Takes one more element into the state.
__device__ inline void push(SoftmaxState<float>& state, float x) {
  // [begin 01.push-cuda]
  if (x > state.m) {               // [4] a new maximum:
    state.l *= expf(state.m - x);  // [5] the old sum, relative to it (0 before the first x)
    state.m = x;
  }
  // while all elements are -inf, (-inf) - (-inf) is kept out of the exponent
  const float shift = state.m == -INFINITY ? 0.0f : state.m;
  state.l += expf(x - shift);  // [5]
  // [end]
}

// How many 16-byte loads a thread has on their way at the same time: one alone would leave the
// memory waiting for the arithmetic.
inline constexpr int kLoads = 4;

// Takes kLoads * 4 more elements into the state. Their maximum comes first, so that l is
// rescaled once for all of them. An element of -inf stands for none.
__device__ inline void push(SoftmaxState<float>& state, const float4 (&x)[kLoads]) {
  // [begin 01.push-many-cuda]
  float m_new = state.m;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    m_new = fmaxf(m_new, fmaxf(fmaxf(x[k].x, x[k].y), fmaxf(x[k].z, x[k].w)));
  }
  const float shift = m_new == -INFINITY ? 0.0f : m_new;

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    sum += (expf(x[k].x - shift) + expf(x[k].y - shift)) +
           (expf(x[k].z - shift) + expf(x[k].w - shift));
  }
  state.l = state.l * expf(state.m - shift) + sum;
  state.m = m_new;
  // [end]
}

// The state of all elements that went into a or into b; the same bits for (b, a), so that two
// threads that exchange their states agree. Empty iff l = 0.
__device__ inline SoftmaxState<float> merge(SoftmaxState<float> a, SoftmaxState<float> b) {
  // [begin 01.merge-cuda]
  if (a.l == 0.0f) return b;  // empty: l says so, for m may be anything
  if (b.l == 0.0f) return a;
  const SoftmaxState<float> high = a.m < b.m ? b : a, low = a.m < b.m ? a : b;
  return {high.m, high.l + low.l * expf(low.m - high.m)};  // relative to the larger maximum
  // [end]
}

// The merged state of the 32 lanes, the same bits in each. All lanes of the warp must call it.
// After the round with distance n, each lane holds the state of a group of 2n lanes.
__device__ inline SoftmaxState<float> warp_merge(SoftmaxState<float> state) {
  // [begin 01.warp-merge-cuda]
  for (int n = 1; n < kWarpSize; n *= 2) {
    const float m = __shfl_xor_sync(kAllLanes, state.m, n);
    const float l = __shfl_xor_sync(kAllLanes, state.l, n);
    state = merge(state, {m, l});
  }
  // [end]
  return state;
}

// The merged state of all threads of the block, the same bits in each. All threads must call
// it; their number is a multiple of 32. A barrier must stand between two calls, for the second
// writes what the first reads.
__device__ inline SoftmaxState<float> block_merge(SoftmaxState<float> state) {
  __shared__ shared_array<float, kWarpSize> m, l;  // a warp's state each; at most 32 warps
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;

  // [begin 01.block-merge-cuda]
  state = warp_merge(state);
  if (lane == 0) {
    m[warp] = state.m;
    l[warp] = state.l;
  }
  __syncthreads();  // the states of all warps are there

  state = {};
  if (lane < warps) state = {m[lane], l[lane]};
  state = warp_merge(state);
  // [end]
  return state;
}

// Turns elements into weights, x -> exp(x - m) / l, with one division for all of them. An empty
// state gives 0.
class Normaliser {
 public:
  __device__ explicit Normaliser(SoftmaxState<float> state) {
    // [begin 01.normalise-cuda]
    shift_ = state.l == 0.0f ? 0.0f : state.m;  // no (-inf) - (-inf)
    inverse_ = state.l == 0.0f ? 0.0f : 1.0f / state.l;
    // [end]
  }
  __device__ float operator()(float x) const { return expf(x - shift_) * inverse_; }
  __device__ float4 operator()(float4 x) const {
    return make_float4((*this)(x.x), (*this)(x.y), (*this)(x.z), (*this)(x.w));
  }

 private:
  float shift_, inverse_;
};

}  // namespace flash_steps

// The steps of the backward pass on one pair of tiles, on the device: what backward_tile.hpp
// has for the CPU, with its equations and marks [n]. Kernels of later chapters are built from
// them: they load their tiles in their own way, and may change P and dP between two steps.
//
// All threads of the block call a step, and each returns before every thread is done. In
// rebuild_P, compute_dP and compute_dS a thread has the same entries each time, so these three
// need no barrier between them; the sums read what other threads computed.
#pragma once

#include "chapters/01_online_softmax/warp.cuh"
#include "chapters/06_backward_recompute/causal_walks.hpp"
#include "common/device/kernel.hpp"

namespace flash_steps {

// The on-chip memory of one pair of tiles. The gradients that a kernel keeps on chip are its
// own matter: it takes them from the same `smem`.
struct BackwardMemory {
  __device__ BackwardMemory(int Br, int Bc, int d, dynamic_shared& smem)
      : Bc(Bc),
        d(d),
        Q(smem.take<float>(Br * d)),
        dO(smem.take<float>(Br * d)),
        K(smem.take<float>(Bc * d)),
        V(smem.take<float>(Bc * d)),
        P(smem.take<float>(Br * Bc)),
        dS(smem.take<float>(Br * Bc)),
        m(smem.take<float>(Br)),
        l(smem.take<float>(Br)),
        delta(smem.take<float>(Br)),
        visible(smem.take<int>(Br)) {}

  int Bc, d;
  shared<float> Q, dO;        // (Br, d)
  shared<float> K, V;         // (Bc, d)
  shared<float> P, dS;        // (Br, Bc)  dS holds dP first
  shared<float> m, l, delta;  // (Br)      the saved statistics; D - dLSE
  shared<int> visible;        // (Br)      how many leading keys each row uses; 0 where l is 0
};

// sum_c a[c] b[c], in every lane of the warp that calls it: [4] for one row of dO and O, each
// of d floats. All lanes of the warp must call it.
__device__ inline float row_dot(global<const float> a, global<const float> b, int d) {
  float sum = 0.0f;
  for (int c = static_cast<int>(threadIdx.x) % kWarpSize; c < d; c += kWarpSize) {
    sum += a[c] * b[c];
  }
  return warp_sum(sum);
}

// Sets `visible` for the pair of the queries from q_start and the keys from k_start on; query i
// sees the keys j <= i + offset. A thread must itself have written the l of rows threadIdx.x,
// threadIdx.x + blockDim.x, ..., or a barrier must stand before.
__device__ inline void set_visible(const BackwardMemory& tile, std::int64_t q_start, int rows,
                                   std::int64_t k_start, int cols, std::int64_t offset) {
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += static_cast<int>(blockDim.x)) {
    const float l = tile.l[r];
    tile.visible[r] = static_cast<int>(used_keys(l, q_start + r, k_start, cols, offset));
  }
}

// The tile's P, for `rows` rows and `cols` keys. With m = LSE and l = 1, where there are keys,
// those are the weights from LSE alone.
__device__ inline void rebuild_P(const BackwardMemory& tile, int rows, int cols, float scale) {
  // [begin 06.rebuild-p-cuda]
  for (int e = static_cast<int>(threadIdx.x); e < rows * cols;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / cols, c = e % cols;
    if (c >= tile.visible[r]) continue;  // a hidden score may be larger than m
    // [10] the score again
    float s = 0.0f;
    for (int x = 0; x < tile.d; ++x) s += tile.Q[r * tile.d + x] * tile.K[c * tile.d + x];
    // [11] the saved m and l turn it into a final weight: nothing is carried from tile to tile
    tile.P[r * tile.Bc + c] = expf(scale * s - tile.m[r]) / tile.l[r];
  }
  // [end]
}

// dP, into tile.dS.
__device__ inline void compute_dP(const BackwardMemory& tile, int rows, int cols) {
  // [begin 06.compute-dp-cuda]
  for (int e = static_cast<int>(threadIdx.x); e < rows * cols;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / cols, c = e % cols;
    if (c >= tile.visible[r]) continue;
    float dP = 0.0f;  // [13]
    for (int x = 0; x < tile.d; ++x) dP += tile.dO[r * tile.d + x] * tile.V[c * tile.d + x];
    tile.dS[r * tile.Bc + c] = dP;
  }
  // [end]
}

// dS, from dP in its place and P.
__device__ inline void compute_dS(const BackwardMemory& tile, int rows, int cols) {
  // [begin 06.compute-ds-cuda]
  for (int e = static_cast<int>(threadIdx.x); e < rows * cols;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / cols, c = e % cols, at = r * tile.Bc + c;
    if (c >= tile.visible[r]) continue;
    tile.dS[at] = tile.P[at] * (tile.dS[at] - tile.delta[r]);  // [14]
  }
  // [end]
}

// out (cols, d) += factor * W^T X, for W (rows, Bc) and X (rows, d) on chip: a thread has an
// entry of `out`, and goes through the rows that use its key.
__device__ inline void add_transposed(shared<float> out, float factor, shared<float> W,
                                      shared<float> X, const BackwardMemory& tile, int rows,
                                      int cols) {
  // [begin 06.add-transposed-cuda]
  for (int e = static_cast<int>(threadIdx.x); e < cols * tile.d;
       e += static_cast<int>(blockDim.x)) {
    const int c = e / tile.d, x = e % tile.d;
    float sum = 0.0f;
    for (int r = 0; r < rows; ++r) {
      if (c < tile.visible[r]) sum += W[r * tile.Bc + c] * X[r * tile.d + x];
    }
    out[e] += factor * sum;
  }
  // [end]
}

// [12] dV (Bc, d) += P^T dO
__device__ inline void add_dV(shared<float> dV, const BackwardMemory& tile, int rows,
                              int cols) {
  add_transposed(dV, 1.0f, tile.P, tile.dO, tile, rows, cols);
}

// [16] dK (Bc, d) += scale * dS^T Q
__device__ inline void add_dK(shared<float> dK, const BackwardMemory& tile, int rows, int cols,
                              float scale) {
  add_transposed(dK, scale, tile.dS, tile.Q, tile, rows, cols);
}

// Entry (r, x) of dS K: over the keys that the row uses.
__device__ inline float dS_times_K(const BackwardMemory& tile, int r, int x) {
  // [begin 06.ds-times-k-cuda]
  const int seen = tile.visible[r];
  float sum = 0.0f;
  for (int c = 0; c < seen; ++c) sum += tile.dS[r * tile.Bc + c] * tile.K[c * tile.d + x];
  return sum;
  // [end]
}

// [15] dQ (Br, d) += scale * dS K, on chip
__device__ inline void add_dQ(shared<float> dQ, const BackwardMemory& tile, int rows,
                              float scale) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * tile.d;
       e += static_cast<int>(blockDim.x)) {
    dQ[e] += scale * dS_times_K(tile, e / tile.d, e % tile.d);
  }
}

// [15] the same in global memory, into the rows that begin at dQ, dQ + stride, ...: other
// blocks add to them at the same time
__device__ inline void add_dQ_atomically(global<float> dQ, std::int64_t stride,
                                         const BackwardMemory& tile, int rows, float scale) {
  // [begin 06.add-dq-atomically-cuda]
  for (int e = static_cast<int>(threadIdx.x); e < rows * tile.d;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / tile.d, x = e % tile.d;
    atomicAdd(dQ + (r * stride + x), scale * dS_times_K(tile, r, x));
  }
  // [end]
}

}  // namespace flash_steps

// How a block merges the parts of a row: what merge_splits.cpp has on the
// CPU. The last block of a split kernel calls it too.
#pragma once

#include "common/device/kernel.hpp"
#include "common/tensor/layout.hpp"

namespace flash_steps {

// ln(exp(a) + exp(b)); -inf is that of an empty part, and neutral.
__device__ inline float merge_lse(float a, float b) {
  if (b == -INFINITY) return a;
  if (a == -INFINITY) return b;
  const float m = fmaxf(a, b);
  return m + logf(expf(a - m) + expf(b - m));
}

// Where row (b * H + h) * Nq + n of all rows lies in O [B, H, Nq, d].
__device__ inline std::int64_t row_offset(const HeadsLayout& O_at, std::int64_t row) {
  const std::int64_t head = row / O_at.N;  // of B * H
  return O_at.offset(head / O_at.H, head % O_at.H, row % O_at.N);
}

// Merges the parts of one row, one after another: o_part (splits * rows, d) and lse_part
// (splits, rows) into the d numbers from o on and the one at lse. Called by all threads of the
// block; lses is shared memory for `splits` numbers, and a barrier must stand before it is used
// again.
__device__ inline void merge_row(global<const float> o_part, global<const float> lse_part,
                                 int splits, std::int64_t rows, std::int64_t row, int d,
                                 shared<float> lses, global<float> o, global<float> lse) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int s = thread; s < splits; s += threads) lses[s] = lse_part[s * rows + row];
  __syncthreads();  // the LSEs of all parts are there

  // a channel a thread, and m and l with it: the same numbers in all threads
  for (int x = thread; x < d; x += threads) {
    float m = -INFINITY, l = 0.0f, sum = 0.0f;
    // [begin 09.merge-cuda]
    for (int s = 0; s < splits; ++s) {
      const float part = lses[s];
      if (part == -INFINITY) continue;  // empty: its o may be anything
      const float m_new = fmaxf(m, part);
      const float alpha = expf(m - m_new), weight = expf(part - m_new);
      l = alpha * l + weight;
      sum = alpha * sum + weight * o_part[(s * rows + row) * d + x];
      m = m_new;
    }
    o[x] = l == 0.0f ? 0.0f : sum / l;  // 0: no part has a key
    if (x == 0) lse[0] = m + logf(l);
    // [end]
  }
}

}  // namespace flash_steps

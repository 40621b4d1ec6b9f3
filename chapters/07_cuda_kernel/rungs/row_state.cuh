// What rungs 1 and 2 share: one thread that owns a row of queries, and folds one key at a time.
#pragma once

#include "common/device/kernel.hpp"

namespace flash_steps {

// One row, in the registers of one thread: every index is known when the loops are unrolled.
template <int D>
struct RowState {
  float q[D];  // channels from d on are 0
  float O[D];  // not yet divided by l
  float m, l;
};

// q (d) -> the state before the first key.
template <int D>
__device__ void start_row(RowState<D>& row, global<const float> q, int d) {
#pragma unroll
  for (int x = 0; x < D; ++x) {
    row.q[x] = x < d ? q[x] : 0.0f;
    row.O[x] = 0.0f;
  }
  row.m = -INFINITY;
  row.l = 0.0f;
}

// Folds the key and value that begin at k and v, in global or in shared memory; from channel
// `channels` on they are not looked at.
template <int D, class Row>
__device__ void fold_key(RowState<D>& row, Row k, Row v, int channels, float scale) {
  // [begin 07.fold-key-cuda]
  float s = 0.0f;
#pragma unroll
  for (int x = 0; x < D; ++x) {
    if (x < channels) s += row.q[x] * k[x];
  }
  // rounded here: fused into s - shift, the largest would not be exactly 0
  s = __fmul_rn(scale, s);

  const float m_new = fmaxf(row.m, s);
  const float shift = m_new == -INFINITY ? 0.0f : m_new;
  const float alpha = expf(row.m - shift), p = expf(s - shift);
  row.l = alpha * row.l + p;
  row.m = m_new;
#pragma unroll
  for (int x = 0; x < D; ++x) {
    if (x < channels) row.O[x] = alpha * row.O[x] + p * v[x];
  }
  // [end]
}

// Divides O by l, and stores it and LSE. A row that saw no key has l = 0 and gets 0.
template <int D>
__device__ void store_row(const RowState<D>& row, global<float> O, int d, global<float> LSE) {
#pragma unroll
  for (int x = 0; x < D; ++x) {
    if (x < d) O[x] = row.l == 0.0f ? 0.0f : row.O[x] / row.l;
  }
  LSE[0] = row.m + logf(row.l);
}

}  // namespace flash_steps

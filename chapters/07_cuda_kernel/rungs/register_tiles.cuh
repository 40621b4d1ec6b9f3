// The pieces of rung 3: how a block's tiles are spread over its threads' registers, and the two
// products on them. All loops over registers are unrolled, so that every index is known.
//
// A block of 256 threads has 128 rows of Q. 16 threads share 8 rows, and each of them has
//
//   S   8 rows x Bc / 16 keys       O   8 rows x D / 16 channels       m, l of its 8 rows
//
// Which neighbour has what is chosen so that 16-byte loads from shared memory meet no bank
// twice: lanes 2 n and 2 n + 1 of a warp have the same keys and channels of neighbouring rows.
#pragma once

#include "chapters/01_online_softmax/warp.cuh"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "common/device/kernel.hpp"

namespace flash_steps {

inline constexpr int kRows = 8;      // rows of a thread
inline constexpr int kSharing = 16;  // threads that share a row

template <int D>
struct Tiles {
  static constexpr int kThreads = 256;
  static constexpr int Br = kThreads / kSharing * kRows;  // 128
  static constexpr int Bc = D <= 128 ? 64 : 32;           // so that all fits into 227 KB
  static constexpr int kKeys = Bc / kSharing;             // of a thread
  static constexpr int kChannels = D / kSharing;          // of a thread
  static constexpr int kStaged = Bc * D / 4 / kThreads;   // 16-byte pieces of a thread
  // Floats from row to row in shared memory. A row of 4 more than a multiple of 32 begins 4
  // banks after the one before: 8 lanes that read 16 bytes in one column of 8 rows meet 32
  // banks. 16 more, and the two rows of P that a warp writes at a time lie side by side.
  static constexpr int kStrideQ = D + 4, kStrideK = D + 4, kStrideV = D, kStrideP = Bc + 16;
  static constexpr int kSharedBytes =
      4 * (Br * kStrideQ + Bc * kStrideK + Bc * kStrideV + Br * kStrideP);
};

// Which part of the block's tiles is this thread's: rows row, row + 2, ..., row + 14; keys col,
// col + 16, ...; channels 4 col to 4 col + 3, and the same 64, 128, ... further.
struct ThreadPlace {
  int row, col;
};
__device__ inline ThreadPlace thread_place() {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return {2 * kRows * warp + lane % 2, lane / 2};
}

// What a thread carries from key tile to key tile, for its rows.
template <int D>
struct RowsState {
  float m[kRows];                       // of the whole row
  float l[kRows];                       // this thread's share of the sum
  float O[kRows][Tiles<D>::kChannels];  // not yet divided by l
};

template <int D>
__device__ void start_rows(RowsState<D>& state) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    state.m[r] = -INFINITY;
    state.l[r] = 0.0f;
#pragma unroll
    for (int x = 0; x < Tiles<D>::kChannels; ++x) state.O[r][x] = 0.0f;
  }
}

// How many leading keys of the tile each of the thread's rows sees; `row` is the first of them.
__device__ inline void count_seen(int (&seen)[kRows], std::int64_t row, std::int64_t k_start,
                                  int cols, std::int64_t offset) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    seen[r] = static_cast<int>(visible_keys(row + 2 * r, k_start, cols, offset));
  }
}

// ---- global memory -> registers -> shared memory, a tile of Bc rows by the whole block

// The rows of a head in global memory. `whole`: each begins at a multiple of 16 bytes, and d is
// a multiple of 4.
struct HeadRows {
  std::int64_t stride;
  int d;
  bool whole;
};

// The first `rows` rows from `from` on, 16 bytes a piece; zeros for those that do not exist,
// and from channel d on.
template <int D>
__device__ void fetch(float4 (&staged)[Tiles<D>::kStaged], global<const float> from,
                      HeadRows at, int rows) {
#pragma unroll
  for (int n = 0; n < Tiles<D>::kStaged; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * Tiles<D>::kThreads;
    const int r = e / (D / 4), x = e % (D / 4) * 4;
    staged[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (r >= rows) continue;
    if (at.whole) {
      if (x < at.d) staged[n] = as<const float4>(from + (r * at.stride + x))[0];
    } else {
      if (x < at.d) staged[n].x = from[r * at.stride + x];
      if (x + 1 < at.d) staged[n].y = from[r * at.stride + x + 1];
      if (x + 2 < at.d) staged[n].z = from[r * at.stride + x + 2];
      if (x + 3 < at.d) staged[n].w = from[r * at.stride + x + 3];
    }
  }
}

// The same pieces, into rows that are `stride` apart.
template <int D>
__device__ void put(shared<float> to, int stride, const float4 (&staged)[Tiles<D>::kStaged]) {
#pragma unroll
  for (int n = 0; n < Tiles<D>::kStaged; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * Tiles<D>::kThreads;
    as<float4>(to + (e / (D / 4) * stride + e % (D / 4) * 4))[0] = staged[n];
  }
}

// ---- on the registers of a thread

// S += Q K^T; sQ begins with the thread's first row, sK with its first key.
template <int D>
__device__ void add_scores(float (&S)[kRows][Tiles<D>::kKeys], shared<float> sQ,
                           shared<float> sK) {
  using T = Tiles<D>;
  // [begin 07.register-scores-cuda]
  // 4 channels at a time: 8 + Bc / 16 loads of 16 bytes for 8 * Bc / 16 * 4 multiply-adds
#pragma unroll 2
  for (int x = 0; x < D; x += 4) {
    float4 k[T::kKeys];
#pragma unroll
    for (int c = 0; c < T::kKeys; ++c) {
      k[c] = as<float4>(sK + (c * kSharing * T::kStrideK + x))[0];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 q = as<float4>(sQ + (2 * r * T::kStrideQ + x))[0];
#pragma unroll
      for (int c = 0; c < T::kKeys; ++c) {
        S[r][c] += q.x * k[c].x;
        S[r][c] += q.y * k[c].y;
        S[r][c] += q.z * k[c].z;
        S[r][c] += q.w * k[c].w;
      }
    }
  }
  // [end]
}

// Over the 16 threads that share a row, to each of them: lanes 0, 2, ... of a warp are one such
// group, 1, 3, ... the other. All rows at once, so that one exchange need not wait for another.
__device__ inline void row_max(float (&value)[kRows]) {
#pragma unroll
  for (int mask = kSharing; mask >= 2; mask /= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      value[r] = fmaxf(value[r], __shfl_xor_sync(0xffffffff, value[r], mask));
    }
  }
}

__device__ inline void row_sum(float (&value)[kRows]) {
#pragma unroll
  for (int mask = kSharing; mask >= 2; mask /= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      value[r] += __shfl_xor_sync(0xffffffff, value[r], mask);
    }
  }
}

// Turns scores into weights, and carries m, l and O over to the new maximum. sP begins with the
// thread's first row and key. In a partial tile row r sees the first seen[r] keys.
template <int D, bool partial>
__device__ void fold_scores(RowsState<D>& state, float (&S)[kRows][Tiles<D>::kKeys],
                            shared<float> sP, const int (&seen)[kRows], int col, float scale) {
  using T = Tiles<D>;
  constexpr float kLog2e = 1.44269504f;
  // [begin 07.register-softmax-cuda]
  float m_new[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    m_new[r] = state.m[r];
#pragma unroll
    for (int c = 0; c < T::kKeys; ++c) {
      const bool hidden = partial && col + c * kSharing >= seen[r];
      // rounded here: fused into S - shift, the largest would not be exactly 0
      S[r][c] = hidden ? -INFINITY : __fmul_rn(scale, S[r][c]);
      m_new[r] = fmaxf(m_new[r], S[r][c]);
    }
  }
  row_max(m_new);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float shift = m_new[r] == -INFINITY ? 0.0f : m_new[r];
    const float alpha = exp2f((state.m[r] - shift) * kLog2e);
    state.m[r] = m_new[r];
    state.l[r] *= alpha;
#pragma unroll
    for (int c = 0; c < T::kKeys; ++c) {
      const float p = exp2f((S[r][c] - shift) * kLog2e);
      state.l[r] += p;
      sP[2 * r * T::kStrideP + c * kSharing] = p;
    }
#pragma unroll
    for (int x = 0; x < T::kChannels; ++x) state.O[r][x] *= alpha;
  }
  // [end]
}

// Component i of a vector; i is known when the loop around is unrolled.
__device__ inline float component(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// O += P V over the first `cols` keys; sP begins with the thread's first row, sV with its first
// channel. In a partial tile the value of a hidden key is not even multiplied by 0.
template <int D, bool partial>
__device__ void add_values(RowsState<D>& state, shared<float> sP, shared<float> sV,
                           const int (&seen)[kRows], int cols) {
  using T = Tiles<D>;
  // [begin 07.register-values-cuda]
  // 4 keys at a time: 8 + D / 16 loads of 16 bytes for 8 * D / 16 * 4 multiply-adds
  for (int c0 = 0; c0 < cols; c0 += 4) {
    float4 p[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      p[r] = as<float4>(sP + (2 * r * T::kStrideP + c0))[0];
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int x = 0; x < T::kChannels; x += 4) {
        const float4 v = as<float4>(sV + ((c0 + c) * T::kStrideV + x * kSharing))[0];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (partial && c0 + c >= seen[r]) continue;
          const float weight = component(p[r], c);
          state.O[r][x] += weight * v.x;
          state.O[r][x + 1] += weight * v.y;
          state.O[r][x + 2] += weight * v.z;
          state.O[r][x + 3] += weight * v.w;
        }
      }
    }
  }
  // [end]
}

// ---- registers -> global memory

// Divides O by l, and stores it and LSE: the thread's rows of the `rows` that exist, O and LSE
// being those of the block's first row.
template <int D>
__device__ void store_rows(RowsState<D>& state, global<float> O, HeadRows at, global<float> LSE,
                           int rows) {
  const ThreadPlace me = thread_place();
  row_sum(state.l);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float l = state.l[r];
    const int row = me.row + 2 * r;
    if (row >= rows) continue;
    if (me.col == 0) LSE[row] = state.m[r] + logf(l);
#pragma unroll
    for (int x = 0; x < Tiles<D>::kChannels; x += 4) {
      const int channel = 4 * me.col + x * kSharing;
      float o[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) o[i] = l == 0.0f ? 0.0f : state.O[r][x + i] / l;
      const global<float> to = O + (row * at.stride + channel);
      if (at.whole && channel < at.d) as<float4>(to)[0] = make_float4(o[0], o[1], o[2], o[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!at.whole && channel + i < at.d) to[i] = o[i];
      }
    }
  }
}

}  // namespace flash_steps

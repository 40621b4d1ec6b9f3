// The walks of the backward pass over a batch of heads, on the device: what batched_heads.hpp
// has for the CPU. Kernels whose work on one pair of tiles is a parameter: chapter 12 launches
// them with dropout in it. The equations and the marks [n] are those of batched_backward.hpp.
#pragma once

#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_tile.cuh"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {

// The tiles leave room for one block on a multiprocessor, or two: so a block has many threads.
constexpr int kBackwardThreads = 256;

// What the kernels know of the problem.
struct BackwardProblem {
  HeadsLayout Q, K, V, O, dO, dQ, dK, dV;
  int Br, Bc;
  std::int64_t offset;  // query i sees the keys j <= i + offset
  float scale;
};

// Loads what the query rows from q_start on of head h of batch b bring along.
__device__ inline void load_query_tile(const BackwardMemory& tile,
                                       global<const float> Q,      // [B, H, Nq, d]
                                       global<const float> dO,     // [B, H, Nq, d]
                                       global<const float> LSE,    // (B * H, Nq)
                                       global<const float> delta,  // (B * H, Nq)
                                       std::int64_t b, std::int64_t h, std::int64_t q_start,
                                       int rows, const BackwardProblem& p) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  load_rows(tile.Q, Q + p.Q.offset(b, h, q_start), p.Q.stride_n, rows, tile.d);
  load_rows(tile.dO, dO + p.dO.offset(b, h, q_start), p.dO.stride_n, rows, tile.d);
  const std::int64_t first = (b * p.Q.H + h) * p.Q.N + q_start;
  for (int r = thread; r < rows; r += threads) {
    // exp(S - LSE) is exp(S - m) / l with m = LSE and l = 1; or l = 0, if there was no key
    const float m = LSE[first + r];
    tile.m[r] = m;
    tile.l[r] = m == -INFINITY ? 0.0f : 1.0f;
    tile.delta[r] = delta[first + r];
  }
}

// Both kernels call rebuild_pair(tile, rows, cols, scale, TileOrigin) with all threads of the
// block and the pair of tiles complete. It leaves in tile.dS the pair's dS, and in tile.P the
// weights that the values were multiplied by; it may return before every thread is done.

// One block: one tile of the keys of one key/value head, with its dK and dV. It stays while the
// query tiles that see it pass, those of one query head of its group after another.
template <class RebuildPair>
__global__ void batched_key_tile_kernel(global<const float> Q,      // [B, H, Nq, d]
                                        global<const float> K,      // [B, Hkv, Nk, d]
                                        global<const float> V,      // [B, Hkv, Nk, d]
                                        global<const float> LSE,    // (B * H, Nq)
                                        global<const float> dO,     // [B, H, Nq, d]
                                        global<const float> delta,  // (B * H, Nq)
                                        global<float> dK,           // [B, Hkv, Nk, d]
                                        global<float> dV,           // [B, Hkv, Nk, d]
                                        BackwardProblem p, RebuildPair rebuild_pair) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = static_cast<int>(p.K.d), Bc = p.Bc;
  // [5] the first key tiles have the longest walks: they come first
  const std::int64_t tiles = ceil_div(p.K.N, Bc), Hkv = p.K.H, group = p.Q.H / Hkv;
  const TilePlace at = tile_place(blockIdx.x, tiles, p.K.B, Hkv);
  const std::int64_t b = at.b, kv = at.h, k_start = (tiles - 1 - at.i) * Bc;
  const int cols = static_cast<int>(std::min<std::int64_t>(Bc, p.K.N - k_start));

  dynamic_shared smem;
  const BackwardMemory tile(p.Br, Bc, d, smem);
  const shared<float> sdK = smem.take<float>(Bc * d), sdV = smem.take<float>(Bc * d);
  load_rows(tile.K, K + p.K.offset(b, kv, k_start), p.K.stride_n, cols, d);  // [6]
  load_rows(tile.V, V + p.V.offset(b, kv, k_start), p.V.stride_n, cols, d);
  for (int e = thread; e < cols * d; e += threads) sdK[e] = sdV[e] = 0.0f;  // [7]

  // [begin 07.group-cuda]
  // all query heads of the group add to the same dK and dV: the sum never leaves the chip
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (std::int64_t q_start = first_query_tile(k_start, p.Q.N, p.Br, p.offset);
         q_start < p.Q.N; q_start += p.Br) {  // [8]
      const int rows = static_cast<int>(std::min<std::int64_t>(p.Br, p.Q.N - q_start));
      load_query_tile(tile, Q, dO, LSE, delta, b, h, q_start, rows, p);  // [9]
      set_visible(tile, q_start, rows, k_start, cols, p.offset);
      __syncthreads();  // the pair of tiles is complete

      rebuild_pair(tile, rows, cols, p.scale, {b, h, q_start, k_start});  // [10]-[14]
      __syncthreads();  // P and dS are complete

      add_dV(sdV, tile, rows, cols);           // [12]
      add_dK(sdK, tile, rows, cols, p.scale);  // [16]
      __syncthreads();                         // the query tile may be overwritten
    }
  }
  // [end]

  for (int e = thread; e < cols * d; e += threads) {  // [18] each thread what it added up
    const std::int64_t n = k_start + e / d;
    dK[p.dK.offset(b, kv, n) + e % d] = sdK[e];
    dV[p.dV.offset(b, kv, n) + e % d] = sdV[e];
  }
}

// One block: one tile of the queries of one head, with its dQ. It stays while the key tiles
// that it sees pass.
template <class RebuildPair>
__global__ void batched_query_tile_kernel(global<const float> Q,      // [B, H, Nq, d]
                                          global<const float> K,      // [B, Hkv, Nk, d]
                                          global<const float> V,      // [B, Hkv, Nk, d]
                                          global<const float> LSE,    // (B * H, Nq)
                                          global<const float> dO,     // [B, H, Nq, d]
                                          global<const float> delta,  // (B * H, Nq)
                                          global<float> dQ,           // [B, H, Nq, d]
                                          BackwardProblem p, RebuildPair rebuild_pair) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = static_cast<int>(p.Q.d), Br = p.Br;
  const TilePlace at = tile_place(blockIdx.x, ceil_div(p.Q.N, Br), p.Q.B, p.Q.H);  // [8]
  const std::int64_t kv = kv_head(at.h, p.Q.H, p.K.H), q_start = at.i * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, p.Q.N - q_start));

  dynamic_shared smem;
  const BackwardMemory tile(Br, p.Bc, d, smem);
  const shared<float> sdQ = smem.take<float>(Br * d);
  load_query_tile(tile, Q, dO, LSE, delta, at.b, at.h, q_start, rows, p);  // [9]
  for (int e = thread; e < rows * d; e += threads) sdQ[e] = 0.0f;

  // [begin 07.walk-keys-cuda]
  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, p.K.N, p.offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += p.Bc) {  // [5]
    const int cols = static_cast<int>(std::min<std::int64_t>(p.Bc, p.K.N - k_start));
    load_rows(tile.K, K + p.K.offset(at.b, kv, k_start), p.K.stride_n, cols, d);  // [6]
    load_rows(tile.V, V + p.V.offset(at.b, kv, k_start), p.V.stride_n, cols, d);
    set_visible(tile, q_start, rows, k_start, cols, p.offset);
    __syncthreads();  // the pair of tiles is complete

    rebuild_pair(tile, rows, cols, p.scale, {at.b, at.h, q_start, k_start});  // [10]-[14]
    __syncthreads();                                                          // dS is complete

    add_dQ(sdQ, tile, rows, p.scale);  // [15]
    __syncthreads();                   // the key tile may be overwritten
  }
  // [end]

  for (int e = thread; e < rows * d; e += threads) {
    dQ[p.dQ.offset(at.b, at.h, q_start + e / d) + e % d] = sdQ[e];
  }
}

// ---- launchers

// What they get: arrays whose shapes fit, and tiles that do (require_backward_fits).
struct BackwardBatch {
  const DeviceHeads<float>&Q, &K, &V, &O;  // [B, H, Nq, d], [B, Hkv, Nk, d] twice, as Q
  const DeviceMatrix<float>& LSE;          // (B * H, Nq)
  const DeviceHeads<float>& dO;            // as Q
  DeviceMatrix<float>& delta;              // as LSE
  DeviceHeads<float>&dQ, &dK, &dV;         // as Q, as K, as V
  Tiling tile;
  std::int64_t offset;
  float scale;

  BackwardProblem problem() const {
    return {Q.layout(),
            K.layout(),
            V.layout(),
            O.layout(),
            dO.layout(),
            dQ.layout(),
            dK.layout(),
            dV.layout(),
            static_cast<int>(tile.Br),
            static_cast<int>(tile.Bc),
            offset,
            scale};
  }
};

// [4] delta = rowsum(dO * O) - dLSE; dLSE (B * H, Nq), or null: 0.
void launch_delta(const BackwardBatch& batch, const DeviceMatrix<float>* dLSE);

// dK and dV, from delta.
template <class RebuildPair>
void launch_key_tiles(const BackwardBatch& x, const RebuildPair& rebuild_pair) {
  const std::int64_t blocks = ceil_div(x.K.N(), x.tile.Bc) * x.K.B() * x.K.H();
  if (blocks == 0) return;
  launch(batched_key_tile_kernel<RebuildPair>,
         {blocks, kBackwardThreads, key_tile_shared_bytes(x.tile, x.K.d())}, x.Q, x.K, x.V,
         x.LSE, x.dO, x.delta, x.dK, x.dV, x.problem(), rebuild_pair);
}

// dQ, from delta.
template <class RebuildPair>
void launch_query_tiles(const BackwardBatch& x, const RebuildPair& rebuild_pair) {
  const std::int64_t blocks = ceil_div(x.Q.N(), x.tile.Br) * x.Q.B() * x.Q.H();
  if (blocks == 0) return;
  launch(batched_query_tile_kernel<RebuildPair>,
         {blocks, kBackwardThreads, query_tile_shared_bytes(x.tile, x.Q.d())}, x.Q, x.K, x.V,
         x.LSE, x.dO, x.delta, x.dQ, x.problem(), rebuild_pair);
}

}  // namespace flash_steps

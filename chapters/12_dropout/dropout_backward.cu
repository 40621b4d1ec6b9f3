// Chapter 12: the gradients of attention with dropout, on the device. The equations and the
// marks [n] are those of dropout_backward.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_tile.cuh"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/12_dropout/dropout_arguments.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/each_weight.cuh"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// The tiles leave room for one block on a multiprocessor, or two: so a block has many threads.
constexpr int kThreads = 256;

// What the kernels know of the problem.
struct Problem {
  HeadsLayout Q, K, V, O, dO, dQ, dK, dV;
  int Br, Bc;
  std::int64_t offset;  // query i sees the keys j <= i + offset
  float scale, keep_factor;
};

// One warp: one row.
__global__ void dropout_delta_kernel(global<const float> dO,  // [B, H, Nq, d]
                                     global<const float> O,   // [B, H, Nq, d]
                                     global<float> delta,     // (B * H, Nq)
                                     Problem p) {
  const std::int64_t warps = blockDim.x / kWarpSize, H = p.O.H, Nq = p.O.N;
  const std::int64_t row = blockIdx.x * warps + threadIdx.x / kWarpSize;
  if (row >= p.O.B * H * Nq) return;
  const std::int64_t b = row / Nq / H, h = row / Nq % H, i = row % Nq;
  // [4] of O as it is after dropout
  const float D =
      row_dot(dO + p.dO.offset(b, h, i), O + p.O.offset(b, h, i), static_cast<int>(p.O.d));
  if (threadIdx.x % kWarpSize == 0) delta[row] = D;
}

// Loads what the query rows from q_start on of head h of batch b bring along.
__device__ void load_query_tile(const BackwardMemory& tile,
                                global<const float> Q,      // [B, H, Nq, d]
                                global<const float> dO,     // [B, H, Nq, d]
                                global<const float> LSE,    // (B * H, Nq)
                                global<const float> delta,  // (B * H, Nq)
                                std::int64_t b, std::int64_t h, std::int64_t q_start, int rows,
                                const Problem& p) {
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

// The pair's dS, and Z * P in the place of P. All threads of the block call it, with the pair
// of tiles complete. It ends with a barrier.
template <class Mask>
__device__ void dropout_P_and_dS(const BackwardMemory& tile, int rows, int cols,
                                 const Problem& p, const Mask& mask, const TileOrigin& origin) {
  // [begin 12.mask-gradients-cuda]
  rebuild_P(tile, rows, cols, p.scale);  // [10] [11] without dropout
  compute_dP(tile, rows, cols);          // [13] dO V^T, without dropout
  __syncthreads();                       // P and dP are complete
  for_each_weight(tile.visible, rows, cols, mask, origin, [&](int r, int c, bool kept) {
    const int at = r * tile.Bc + c;
    const float Z = kept ? p.keep_factor : 0.0f, P = tile.P[at];
    // [14] dP went through the mask, the softmax did not: Z on dP, none on P
    tile.dS[at] = P * (Z * tile.dS[at] - tile.delta[r]);
    tile.P[at] = Z * P;  // for dV: the values were multiplied by these
  });
  __syncthreads();  // P and dS are complete
  // [end]
}

// One block: one tile of the keys of one key/value head, with its dK and dV. It stays while the
// query tiles that see it pass, those of one query head of its group after another.
template <class Mask>
__global__ void dropout_key_tile_kernel(global<const float> Q,      // [B, H, Nq, d]
                                        global<const float> K,      // [B, Hkv, Nk, d]
                                        global<const float> V,      // [B, Hkv, Nk, d]
                                        global<const float> LSE,    // (B * H, Nq)
                                        global<const float> dO,     // [B, H, Nq, d]
                                        global<const float> delta,  // (B * H, Nq)
                                        global<float> dK,           // [B, Hkv, Nk, d]
                                        global<float> dV,           // [B, Hkv, Nk, d]
                                        Problem p, Mask mask) {
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

  // [begin 12.walk-queries-cuda]
  // all query heads of the group add to the same dK and dV: the sum never leaves the chip
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (std::int64_t q_start = first_query_tile(k_start, p.Q.N, p.Br, p.offset);
         q_start < p.Q.N; q_start += p.Br) {  // [8]
      const int rows = static_cast<int>(std::min<std::int64_t>(p.Br, p.Q.N - q_start));
      load_query_tile(tile, Q, dO, LSE, delta, b, h, q_start, rows, p);  // [9]
      set_visible(tile, q_start, rows, k_start, cols, p.offset);
      __syncthreads();  // the pair of tiles is complete

      dropout_P_and_dS(tile, rows, cols, p, mask, {b, h, q_start, k_start});  // [10]-[14]

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
template <class Mask>
__global__ void dropout_query_tile_kernel(global<const float> Q,      // [B, H, Nq, d]
                                          global<const float> K,      // [B, Hkv, Nk, d]
                                          global<const float> V,      // [B, Hkv, Nk, d]
                                          global<const float> LSE,    // (B * H, Nq)
                                          global<const float> dO,     // [B, H, Nq, d]
                                          global<const float> delta,  // (B * H, Nq)
                                          global<float> dQ,           // [B, H, Nq, d]
                                          Problem p, Mask mask) {
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

  // [begin 12.walk-keys-cuda]
  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, p.K.N, p.offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += p.Bc) {  // [5]
    const int cols = static_cast<int>(std::min<std::int64_t>(p.Bc, p.K.N - k_start));
    load_rows(tile.K, K + p.K.offset(at.b, kv, k_start), p.K.stride_n, cols, d);  // [6]
    load_rows(tile.V, V + p.V.offset(at.b, kv, k_start), p.V.stride_n, cols, d);
    set_visible(tile, q_start, rows, k_start, cols, p.offset);
    __syncthreads();  // the pair of tiles is complete

    dropout_P_and_dS(tile, rows, cols, p, mask, {at.b, at.h, q_start, k_start});  // [10]-[14]

    add_dQ(sdQ, tile, rows, p.scale);  // [15]
    __syncthreads();                   // the key tile may be overwritten
  }
  // [end]

  for (int e = thread; e < rows * d; e += threads) {
    dQ[p.dQ.offset(at.b, at.h, q_start + e / d) + e % d] = sdQ[e];
  }
}

// ---- launchers

void launch_delta(const DeviceHeads<float>& dO, const DeviceHeads<float>& O,
                  DeviceMatrix<float>& delta, const Problem& p) {
  if (delta.size() == 0) return;
  launch(dropout_delta_kernel, {ceil_div(delta.size(), kThreads / kWarpSize), kThreads}, dO, O,
         delta, p);
}

template <class Mask>
void launch_key_tiles(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                      const DeviceHeads<float>& V, const DeviceMatrix<float>& LSE,
                      const DeviceHeads<float>& dO, const DeviceMatrix<float>& delta,
                      DeviceHeads<float>& dK, DeviceHeads<float>& dV, const Problem& p,
                      const Mask& mask) {
  const std::int64_t blocks = ceil_div(K.N(), p.Bc) * K.B() * K.H();
  if (blocks == 0) return;
  launch(dropout_key_tile_kernel<Mask>,
         {blocks, kThreads, key_tile_shared_bytes({p.Br, p.Bc}, K.d())}, Q, K, V, LSE, dO,
         delta, dK, dV, p, mask);
}

template <class Mask>
void launch_query_tiles(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                        const DeviceHeads<float>& V, const DeviceMatrix<float>& LSE,
                        const DeviceHeads<float>& dO, const DeviceMatrix<float>& delta,
                        DeviceHeads<float>& dQ, const Problem& p, const Mask& mask) {
  const std::int64_t blocks = ceil_div(Q.N(), p.Br) * Q.B() * Q.H();
  if (blocks == 0) return;
  launch(dropout_query_tile_kernel<Mask>,
         {blocks, kThreads, query_tile_shared_bytes({p.Br, p.Bc}, Q.d())}, Q, K, V, LSE, dO,
         delta, dQ, p, mask);
}

}  // namespace

void dropout_backward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                           const DeviceHeads<float>& V, const DeviceHeads<float>& O,
                           const DeviceMatrix<float>& LSE, const DeviceHeads<float>& dO,
                           DeviceMatrix<float>& delta, DeviceHeads<float>& dQ,
                           DeviceHeads<float>& dK, DeviceHeads<float>& dV,
                           const Dropout& dropout, Tiling tile, bool causal,
                           std::optional<double> scale, const DeviceHeads<std::uint8_t>* mask) {
  require_dropout_arguments(Q, K, V, batch_shape(O), shape_of(LSE), dropout, mask);
  require_gradient_shapes(batch_shape(Q), batch_shape(K), batch_shape(dO), batch_shape(dQ),
                          batch_shape(dK), batch_shape(dV), shape_of(delta), {});
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.d());
  require_backward_fits(tile, Q.d());

  const Problem problem{.Q = Q.layout(),
                        .K = K.layout(),
                        .V = V.layout(),
                        .O = O.layout(),
                        .dO = dO.layout(),
                        .dQ = dQ.layout(),
                        .dK = dK.layout(),
                        .dV = dV.layout(),
                        .Br = static_cast<int>(tile.Br),
                        .Bc = static_cast<int>(tile.Bc),
                        .offset = mask_offset(Q.N(), K.N(), causal),
                        .scale = s,
                        .keep_factor = dropout.keep_factor<float>()};
  launch_delta(dO, O, delta, problem);  // [4]
  with_mask(mask, dropout, Q.H(), [&](const auto& source) {
    launch_key_tiles(Q, K, V, LSE, dO, delta, dK, dV, problem, source);  // [5]-[18]
    launch_query_tiles(Q, K, V, LSE, dO, delta, dQ, problem, source);
  });
}

}  // namespace flash_steps

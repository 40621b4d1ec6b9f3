// Chapter 07: the forward pass for a batch of heads, on the device. The equations and the marks
// [n] are those of batched_forward.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block: Br query rows of one head. X_at says where the heads of X lie, and how large it
// is.
__global__ void batched_forward_kernel(global<const float> Q,
                                       HeadsLayout Q_at,  // [B, H, Nq, d]
                                       global<const float> K, HeadsLayout K_at,  // [B,Hkv,Nk,d]
                                       global<const float> V, HeadsLayout V_at,  // [B,Hkv,Nk,d]
                                       global<float> O, HeadsLayout O_at,  // [B, H, Nq, d]
                                       global<float> LSE,                  // (B * H, Nq)
                                       int Br, int Bc, std::int64_t offset, float scale) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t Nq = Q_at.N, Nk = K_at.N;
  const int d = static_cast<int>(Q_at.d);

  // [begin 07.block-cuda]
  // [3] which tile of which head is mine, and which keys and values belong to it
  const TilePlace at = tile_place(blockIdx.x, ceil_div(Nq, Br), Q_at.B, Q_at.H);
  const std::int64_t kv = kv_head(at.h, Q_at.H, K_at.H);
  const std::int64_t q_start = at.i * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short
  // [end]

  const TileMemory tile(Br, Bc, d);
  load_rows(tile.Q, Q + Q_at.offset(at.b, at.h, q_start), Q_at.stride_n, rows, d);  // [4]
  reset_state(tile, rows);                                                          // [5]
  __syncthreads();  // Q, m, l, O are complete

  // [begin 07.walk-cuda]
  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, Nk, offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += Bc) {  // [6]
    const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
    load_rows(tile.K, K + K_at.offset(at.b, kv, k_start), K_at.stride_n, cols, d);  // [7]
    load_rows(tile.V, V + V_at.offset(at.b, kv, k_start), V_at.stride_n, cols, d);
    for (int r = thread; r < rows; r += threads) {
      tile.visible[r] = static_cast<int>(visible_keys(q_start + r, k_start, cols, offset));
    }
    __syncthreads();  // the tile is complete

    fold_tile(tile, rows, cols, scale);  // [8]-[10]
    __syncthreads();                     // the tile may be overwritten
  }
  // [end]

  // [begin 07.store-cuda]
  store_rows(O + O_at.offset(at.b, at.h, q_start), O_at.stride_n, tile, rows);  // [12] [14]
  for (int r = thread; r < rows; r += threads) {                                // [13] [15]
    LSE[(at.b * Q_at.H + at.h) * Nq + q_start + r] = tile.m[r] + logf(tile.l[r]);
  }
  // [end]
}

}  // namespace

void batched_forward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                          const DeviceHeads<float>& V, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, Tiling tile, bool causal,
                          std::optional<double> scale) {
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), batch_shape(O),
                       shape_of(LSE));
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.d());
  require_tile_fits(tile, Q.d());
  const std::int64_t blocks = ceil_div(Q.N(), tile.Br) * Q.B() * Q.H();
  if (blocks == 0) return;

  // all of them along x: a grid has 2^31 - 1 blocks there, but only 65 535 along y and z
  launch(batched_forward_kernel, {blocks, kThreads, tile_shared_bytes(tile, Q.d())}, Q,
         Q.layout(), K, K.layout(), V, V.layout(), O, O.layout(), LSE,
         static_cast<int>(tile.Br), static_cast<int>(tile.Bc),
         mask_offset(Q.N(), K.N(), causal), s);
}

}  // namespace flash_steps

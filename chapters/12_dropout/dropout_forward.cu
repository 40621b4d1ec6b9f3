// Chapter 12: attention with dropout on its weights, forward, on the device. The equations and
// the marks [n] are those of dropout_forward.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/12_dropout/dropout_arguments.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"
#include "chapters/12_dropout/each_weight.cuh"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// The walk of the query tile `at` over the keys that it sees: chapter 04's, with the mask
// between the weights and the values. Q, m, l, O of the tile are in place; all threads of the
// block call it, and may read tile.O, tile.m and tile.l when it returns.
template <class Mask>
__device__ void dropout_q_tile(const TileMemory& tile, const TilePlace& at, int Br, int rows,
                               global<const float> K, std::int64_t K_stride,  // (Nk, d)
                               global<const float> V, std::int64_t V_stride,  // (Nk, d)
                               std::int64_t Nk, std::int64_t offset, float scale,
                               const Mask& mask) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t Bc = tile.Bc, q_start = at.i * Br;

  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, Nk, offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += Bc) {     // [6]
    const int cols = static_cast<int>(std::min(Bc, Nk - k_start));      // the last may be short
    load_rows(tile.K, K + k_start * K_stride, K_stride, cols, tile.d);  // [7]
    load_rows(tile.V, V + k_start * V_stride, V_stride, cols, tile.d);
    for (int r = thread; r < rows; r += threads) {
      tile.visible[r] = static_cast<int>(visible_keys(q_start + r, k_start, cols, offset));
    }
    __syncthreads();  // the tile is complete

    // [begin 12.fold-tile-cuda]
    tile_scores(tile, rows, cols, scale);  // [8]
    __syncthreads();                       // S is complete
    tile_weights(tile, rows);              // [9] l sums all weights
    __syncthreads();                       // P and alpha are complete
    for_each_weight(tile.visible, rows, cols, mask, {at.b, at.h, q_start, k_start},
                    [&](int r, int c, bool kept) {
                      if (!kept) tile.S[r * tile.Bc + c] = 0.0f;  // O gets those kept
                    });
    __syncthreads();         // the mask is applied
    add_values(tile, rows);  // [10]
    // [end]
    __syncthreads();  // the tile may be overwritten
  }
}

// One block: Br query rows of one head.
template <class Mask>
__global__ void dropout_forward_kernel(global<const float> Q, HeadsLayout Q_at,  // [B,H,Nq,d]
                                       global<const float> K, HeadsLayout K_at,  // [B,Hkv,Nk,d]
                                       global<const float> V, HeadsLayout V_at,  // [B,Hkv,Nk,d]
                                       global<float> O, HeadsLayout O_at,        // [B,H,Nq,d]
                                       global<float> LSE,                        // (B * H, Nq)
                                       int Br, int Bc, std::int64_t offset, float scale,
                                       Mask mask, float keep_factor) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t Nq = Q_at.N, H = Q_at.H;
  const int d = static_cast<int>(Q_at.d);
  const TilePlace at = tile_place(blockIdx.x, ceil_div(Nq, Br), Q_at.B, H);  // [3]
  const std::int64_t kv = kv_head(at.h, H, K_at.H), q_start = at.i * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short

  const TileMemory tile(Br, Bc, d);
  load_rows(tile.Q, Q + Q_at.offset(at.b, at.h, q_start), Q_at.stride_n, rows, d);  // [4]
  reset_state(tile, rows);                                                          // [5]
  __syncthreads();  // Q, m, l, O are complete

  dropout_q_tile(tile, at, Br, rows, K + K_at.offset(at.b, kv, 0), K_at.stride_n,
                 V + V_at.offset(at.b, kv, 0), V_at.stride_n, K_at.N, offset, scale, mask);

  // [begin 12.finish-cuda]
  // [12] [14] divide by the sum of all weights, and multiply by 1/(1-p): once, and here
  for (int e = thread; e < rows * d; e += threads) {
    const float l = tile.l[e / d];
    O[O_at.offset(at.b, at.h, q_start + e / d) + e % d] =
        l == 0.0f ? 0.0f : tile.O[e] / l * keep_factor;
  }
  for (int r = thread; r < rows; r += threads) {  // [13] [15]
    LSE[(at.b * H + at.h) * Nq + q_start + r] = tile.m[r] + logf(tile.l[r]);
  }
  // [end]
}

template <class Mask>
void launch_forward(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                    const DeviceHeads<float>& V, DeviceHeads<float>& O,
                    DeviceMatrix<float>& LSE, Tiling tile, std::int64_t offset, float scale,
                    const Mask& mask, float keep_factor) {
  launch(dropout_forward_kernel<Mask>,
         {ceil_div(Q.N(), tile.Br) * Q.B() * Q.H(), kThreads, tile_shared_bytes(tile, Q.d())},
         Q, Q.layout(), K, K.layout(), V, V.layout(), O, O.layout(), LSE,
         static_cast<int>(tile.Br), static_cast<int>(tile.Bc), offset, scale, mask,
         keep_factor);
}

// One thread: four neighbouring bytes of a row of the mask.
__global__ void dropout_mask_kernel(global<std::uint8_t> kept, HeadsLayout at,
                                    PhiloxMask mask) {
  const std::int64_t quads = ceil_div(at.d, std::int64_t{4});
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t quad = thread % quads, row = thread / quads % at.N,
                     head = thread / quads / at.N;
  if (head >= at.B * at.H) return;
  const std::int64_t b = head / at.H, h = head % at.H;
  const unsigned bits = mask.keep4(b, h, row, quad);
  for (int i = 0; i < 4 && 4 * quad + i < at.d; ++i) {
    kept[at.offset(b, h, row) + 4 * quad + i] = static_cast<std::uint8_t>(bits >> i & 1);
  }
}

}  // namespace

void dropout_forward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                          const DeviceHeads<float>& V, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, const Dropout& dropout, Tiling tile,
                          bool causal, std::optional<double> scale,
                          const DeviceHeads<std::uint8_t>* mask) {
  require_dropout_arguments(Q, K, V, batch_shape(O), shape_of(LSE), dropout, mask);
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.d());
  require_tile_fits(tile, Q.d());
  if (LSE.size() == 0) return;

  const std::int64_t offset = mask_offset(Q.N(), K.N(), causal);
  with_mask(mask, dropout, Q.H(), [&](const auto& source) {
    launch_forward(Q, K, V, O, LSE, tile, offset, s, source, dropout.keep_factor<float>());
  });
}

void dropout_mask_cuda(DeviceHeads<std::uint8_t>& kept, const Dropout& dropout) {
  require_dropout(dropout, kept.B(), kept.H(), kept.N(), kept.d());
  const std::int64_t quads =
      kept.B() * kept.H() * kept.N() * ceil_div(kept.d(), std::int64_t{4});
  if (quads == 0) return;
  launch(dropout_mask_kernel, {ceil_div(quads, kThreads), kThreads}, kept, kept.layout(),
         PhiloxMask(dropout, kept.H()));
}

}  // namespace flash_steps

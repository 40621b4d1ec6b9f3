// Chapter 03: FlashAttention's forward pass, tile by tile, on the device. The equations and the
// marks [n] are those of tiled_forward.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/fold_tile.cuh"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// The walk of one query tile over all keys; Q, m, l, O of the tile are in place. All threads of
// the block call it, and may read tile.O and tile.l when it returns.
__device__ void forward_q_tile(const TileMemory& tile, int rows,
                               global<const float> K,  // (Nk, d)
                               global<const float> V,  // (Nk, d)
                               std::int64_t Nk, float scale) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t Bc = tile.Bc;

  // [begin 03.walk-cuda]
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {     // [6]
    const int cols = static_cast<int>(std::min(Bc, Nk - k_start));  // the last may be short
    for (int e = thread; e < cols * tile.d; e += threads) {         // [7]
      tile.K[e] = K[k_start * tile.d + e];
      tile.V[e] = V[k_start * tile.d + e];
    }
    for (int r = thread; r < rows; r += threads) tile.visible[r] = cols;  // no mask
    __syncthreads();  // the tile is complete

    fold_tile(tile, rows, cols, scale);  // [8]-[10]
    __syncthreads();                     // the tile may be overwritten
  }
  // [end]
}

// One block: Br query rows of one head.
__global__ void tiled_forward_kernel(global<const float> Q,  // (Nq, d)
                                     global<const float> K,  // (Nk, d)
                                     global<const float> V,  // (Nk, d)
                                     global<float> O,        // (Nq, d)
                                     std::int64_t Nq, std::int64_t Nk, int d, int Br, int Bc,
                                     float scale) {
  const std::int64_t q_start = std::int64_t{blockIdx.x} * Br;                   // [3]
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short

  const TileMemory tile(Br, Bc, d);
  start_q_tile(tile, Q, q_start, rows);  // [4] [5]

  forward_q_tile(tile, rows, K, V, Nk, scale);

  store_output(tile, O, q_start, rows);  // [12] [14]
}

}  // namespace

void tiled_forward_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, DeviceMatrix<float>& O, Tiling tile,
                        std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const float s = resolve_scale<float>(scale, d);
  require_tile_fits(tile, d);
  if (Nq == 0) return;

  launch(tiled_forward_kernel, {ceil_div(Nq, tile.Br), kThreads, tile_shared_bytes(tile, d)}, Q,
         K, V, O, Nq, Nk, static_cast<int>(d), static_cast<int>(tile.Br),
         static_cast<int>(tile.Bc), s);
}

}  // namespace flash_steps

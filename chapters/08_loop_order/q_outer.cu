// Chapter 08: the queries outside, on the device. The marks [n] are those of q_outer.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_q_tile.cuh"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "chapters/08_loop_order/sizes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block: Br query rows of one head.
__global__ void q_outer_kernel(global<const float> Q,  // (Nq, d)
                               global<const float> K,  // (Nk, d)
                               global<const float> V,  // (Nk, d)
                               global<float> O,        // (Nq, d)
                               global<float> LSE,      // (Nq)
                               std::int64_t Nq, std::int64_t Nk, int d, int Br, int Bc,
                               std::int64_t offset, float scale) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const TileMemory tile(Br, Bc, d);

  // [begin 08.q-outer-cuda]
  // [3] this Q tile is nobody else's. The last has the longest walk, and is the first to start
  const std::int64_t q_start = (std::int64_t{gridDim.x} - 1 - blockIdx.x) * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short
  start_q_tile(tile, Q, q_start, rows);                                         // [4] [5]
  causal_q_tile(tile, rows, K, V, q_start, Nk, offset, scale);                  // [6]-[11]
  store_output(tile, O, q_start, rows);                                         // [12] [14]
  for (int r = thread; r < rows; r += threads) {                                // [13] [15]
    LSE[q_start + r] = tile.m[r] + logf(tile.l[r]);
  }
  // [end]
}

}  // namespace

void q_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                  const DeviceMatrix<float>& V, DeviceMatrix<float>& O, DeviceArray<float>& LSE,
                  Tiling tile, bool causal, std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_size("LSE", LSE.size(), Q.rows());
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const float s = resolve_scale<float>(scale, d);
  require_tile_fits(tile, d);
  if (Nq == 0) return;

  launch(q_outer_kernel, {ceil_div(Nq, tile.Br), kThreads, tile_shared_bytes(tile, d)}, Q, K, V,
         O, LSE, Nq, Nk, static_cast<int>(d), static_cast<int>(tile.Br),
         static_cast<int>(tile.Bc), mask_offset(Nq, Nk, causal), s);
}

}  // namespace flash_steps

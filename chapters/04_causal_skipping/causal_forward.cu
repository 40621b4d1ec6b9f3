// Chapter 04: the tiled forward pass with a causal mask, on the device. The equations and the
// marks [n] are those of causal_forward.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "chapters/04_causal_skipping/causal_q_tile.cuh"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block: Br query rows of one head.
__global__ void causal_forward_kernel(global<const float> Q,  // (Nq, d)
                                      global<const float> K,  // (Nk, d)
                                      global<const float> V,  // (Nk, d)
                                      global<float> O,        // (Nq, d)
                                      std::int64_t Nq, std::int64_t Nk, int d, int Br, int Bc,
                                      std::int64_t offset, float scale, bool all_tiles) {
  // [3] blocks start in order of their index, and the last query tile has the longest walk: it
  // comes first, so that no long walk is left over at the end
  const std::int64_t q_start = (std::int64_t{gridDim.x} - 1 - blockIdx.x) * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short

  const TileMemory tile(Br, Bc, d);
  start_q_tile(tile, Q, q_start, rows);  // [4] [5]

  causal_q_tile(tile, rows, K, V, q_start, Nk, offset, scale,
                all_tiles ? Visit::all_tiles : Visit::skip_hidden);

  store_output(tile, O, q_start, rows);  // [12] [14]
}

}  // namespace

void causal_forward_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                         const DeviceMatrix<float>& V, DeviceMatrix<float>& O, Tiling tile,
                         bool causal, std::optional<double> scale, Visit visit) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const float s = resolve_scale<float>(scale, d);
  require_tile_fits(tile, d);
  if (Nq == 0) return;

  launch(causal_forward_kernel, {ceil_div(Nq, tile.Br), kThreads, tile_shared_bytes(tile, d)},
         Q, K, V, O, Nq, Nk, static_cast<int>(d), static_cast<int>(tile.Br),
         static_cast<int>(tile.Bc), mask_offset(Nq, Nk, causal), s, visit == Visit::all_tiles);
}

}  // namespace flash_steps

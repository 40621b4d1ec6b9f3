#include "chapters/03_tiled_forward/fold_tile.cuh"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "tests/03_tiled_forward_cuda.hpp"

namespace flash_steps::test {
namespace {

__global__ void fold_one_tile_kernel(global<const float> Q,      // (rows, d)
                                     global<const float> K,      // (cols, d)
                                     global<const float> V,      // (cols, d)
                                     global<const int> visible,  // (rows)
                                     global<float> O,            // (rows, d)
                                     global<float> m,            // (rows)
                                     global<float> l,            // (rows)
                                     int rows, int cols, int d, float scale) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const TileMemory tile(rows, cols, d);
  start_q_tile(tile, Q, 0, rows);
  for (int e = thread; e < cols * d; e += threads) {
    tile.K[e] = K[e];
    tile.V[e] = V[e];
  }
  for (int r = thread; r < rows; r += threads) tile.visible[r] = visible[r];
  __syncthreads();  // the tile is complete

  fold_tile(tile, rows, cols, scale);
  __syncthreads();  // O and l are complete
  store_output(tile, O, 0, rows);
  for (int r = thread; r < rows; r += threads) {
    m[r] = tile.m[r];
    l[r] = tile.l[r];
  }
}

}  // namespace

void fold_one_tile_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, const DeviceArray<int>& visible,
                        DeviceMatrix<float>& O, DeviceArray<float>& m, DeviceArray<float>& l,
                        float scale) {
  const Tiling tile{.Br = Q.rows(), .Bc = K.rows()};
  launch(fold_one_tile_kernel, {1, 128, tile_shared_bytes(tile, Q.cols())}, Q, K, V, visible, O,
         m, l, static_cast<int>(Q.rows()), static_cast<int>(K.rows()),
         static_cast<int>(Q.cols()), scale);
}

}  // namespace flash_steps::test

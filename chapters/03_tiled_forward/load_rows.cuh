// Tiles whose rows do not lie side by side in memory: what chapters with batches, caches and
// heads in between load with.
#pragma once

#include "chapters/03_tiled_forward/fold_tile.cuh"

namespace flash_steps {

// to (rows, d) = the rows that begin at from, from + stride, from + 2 stride, ..., in pieces of
// one float, or of a float4: from, stride and d must then be multiples of four. Called by all
// threads of the block; a barrier must stand before the rows are read.
template <class Piece = float>
__device__ void load_rows(shared<float> to, global<const float> from, std::int64_t stride,
                          int rows, int d) {
  constexpr int kFloats = sizeof(Piece) / sizeof(float);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const shared<Piece> to_pieces = as<Piece>(to);
  const global<const Piece> from_pieces = as<const Piece>(from);
  const int pieces = d / kFloats;  // of a row
  for (int e = thread; e < rows * pieces; e += threads) {
    to_pieces[e] = from_pieces[e / pieces * (stride / kFloats) + e % pieces];
  }
}

// Sets m, l and O of `rows` rows to what they are before the first key. Barrier as above.
__device__ inline void reset_state(const TileMemory& tile, int rows) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < rows * tile.d; e += threads) tile.O[e] = 0.0f;
  for (int r = thread; r < rows; r += threads) {
    tile.m[r] = -INFINITY;
    tile.l[r] = 0.0f;
  }
}

// Divides O by l and stores it to the rows that begin at `to`, `stride` apart: store_output for
// rows that do not lie side by side.
__device__ inline void store_rows(global<float> to, std::int64_t stride, const TileMemory& tile,
                                  int rows) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = tile.d;
  for (int e = thread; e < rows * d; e += threads) {
    const float l = tile.l[e / d];
    to[e / d * stride + e % d] = l == 0.0f ? 0.0f : tile.O[e] / l;
  }
}

}  // namespace flash_steps

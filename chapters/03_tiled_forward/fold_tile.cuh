// One tile's update on the device: what tiled_forward.hpp's TileState and fold_tile are on the
// CPU. Kernels of later chapters are built from it.
#pragma once

#include "chapters/01_online_softmax/warp.cuh"
#include "common/device/kernel.hpp"

namespace flash_steps {

// The on-chip memory of one block: the papers' SRAM. All of it is dynamic shared memory, of
// tile_shared_bytes({Br, Bc}, d) bytes.
struct TileMemory {
  __device__ TileMemory(int Br, int Bc, int d, dynamic_shared smem = {})
      : Bc(Bc),
        d(d),
        Q(smem.take<float>(Br * d)),
        K(smem.take<float>(Bc * d)),
        V(smem.take<float>(Bc * d)),
        S(smem.take<float>(Br * Bc)),
        O(smem.take<float>(Br * d)),
        m(smem.take<float>(Br)),
        l(smem.take<float>(Br)),
        alpha(smem.take<float>(Br)),
        visible(smem.take<int>(Br)) {}

  int Bc, d;
  shared<float> Q;            // (Br, d)
  shared<float> K, V;         // (Bc, d)
  shared<float> S;            // (Br, Bc)  scores, then P
  shared<float> O;            // (Br, d)   not yet divided by l
  shared<float> m, l, alpha;  // (Br)      running maximum, running sum, exp(m_old - m_new)
  shared<int> visible;        // (Br)      how many leading keys of the tile each row sees
};

// Loads `rows` rows of Q (Nq, d) from q_start on, and sets m, l and O to what they are before
// the first key. Ends with a barrier: all threads of the block must call it.
__device__ inline void start_q_tile(const TileMemory& tile, global<const float> Q,
                                    std::int64_t q_start, int rows) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < rows * tile.d; e += threads) {
    tile.Q[e] = Q[q_start * tile.d + e];
    tile.O[e] = 0.0f;
  }
  for (int r = thread; r < rows; r += threads) {
    tile.m[r] = -INFINITY;
    tile.l[r] = 0.0f;
  }
  __syncthreads();  // Q, m, l, O are complete
}

// fold_tile's three steps, for walks that do something in between. Each is called by all
// threads of the block, and returns before every thread is done: a barrier must follow.
//
// tile.S = scale * tile.Q tile.K^T, for `rows` query rows and `cols` keys.
__device__ inline void tile_scores(const TileMemory& tile, int rows, int cols, float scale) {
  const int Bc = tile.Bc, d = tile.d;
  // [begin 03.scores-cuda]
  // [8] scores of this tile, an entry a thread
  for (int e = static_cast<int>(threadIdx.x); e < rows * cols;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / cols, c = e % cols;
    float s = 0.0f;
    for (int x = 0; x < d; ++x) s += tile.Q[r * d + x] * tile.K[c * d + x];
    tile.S[r * Bc + c] = scale * s;
  }
  // [end]
}

// tile.S, the scores, become P = exp(S - m) where they are visible; m and l move to the new
// maximum, l takes the sum of P in, and tile.alpha is what will carry O over. The threads are a
// multiple of 32.
__device__ inline void tile_weights(const TileMemory& tile, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int Bc = tile.Bc;
  // [begin 03.fold-tile-cuda]
  // [9] a warp to a row, its lanes side by side along the keys
  for (int r = warp; r < rows; r += warps) {
    // the new maximum; lane 0 brings the old one. While no score is above -inf, (-inf) - (-inf)
    // is kept out of the exponents
    const float m_old = lane == 0 ? tile.m[r] : -INFINITY;
    const int seen = tile.visible[r];
    float m_new = m_old;
    for (int c = lane; c < seen; c += kWarpSize) m_new = fmaxf(m_new, tile.S[r * Bc + c]);
    m_new = warp_max(m_new);
    const float shift = m_new == -INFINITY ? 0.0f : m_new;

    // this tile's weights, and their sum
    float sum = 0.0f;
    for (int c = lane; c < seen; c += kWarpSize) {
      const float p = expf(tile.S[r * Bc + c] - shift);
      tile.S[r * Bc + c] = p;
      sum += p;
    }
    sum = warp_sum(sum);

    // alpha carries the old l over to the new maximum
    if (lane == 0) {
      const float alpha = expf(m_old - shift);
      tile.alpha[r] = alpha;
      tile.l[r] = alpha * tile.l[r] + sum;
      tile.m[r] = m_new;
    }
  }
  // [end]
}

// O = alpha * O + P V, over the visible keys.
__device__ inline void add_values(const TileMemory& tile, int rows) {
  const int Bc = tile.Bc, d = tile.d;
  // [begin 03.add-values-cuda]
  // [10] alpha carries the old O over (the paper prints its inverse); add P V over the keys
  // that the row sees: the value of a hidden key is not even multiplied by 0
  for (int e = static_cast<int>(threadIdx.x); e < rows * d; e += static_cast<int>(blockDim.x)) {
    const int r = e / d, x = e % d;
    const int seen = tile.visible[r];
    float o = tile.alpha[r] * tile.O[e];
    for (int c = 0; c < seen; ++c) o += tile.S[r * Bc + c] * tile.V[c * d + x];
    tile.O[e] = o;
  }
  // [end]
}

// Folds the key tile in tile.K, tile.V into tile.O, tile.m, tile.l, for `rows` query rows.
// Called by all threads of the block, a multiple of 32, with the tile complete; returns before
// every thread is done, so a barrier must stand before the tile is read or overwritten.
__device__ inline void fold_tile(const TileMemory& tile, int rows, int cols, float scale) {
  tile_scores(tile, rows, cols, scale);  // [8]
  __syncthreads();                       // S is complete
  tile_weights(tile, rows);              // [9]
  __syncthreads();                       // P and alpha are complete
  add_values(tile, rows);                // [10]
}

// Divides O by l and stores it to the rows of O (Nq, d) from q_start on. The walk must have
// ended with a barrier.
__device__ inline void store_output(const TileMemory& tile, global<float> O,
                                    std::int64_t q_start, int rows) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = tile.d;
  // [begin 03.normalise-cuda]
  // [12] [14] a row that saw no key has l = 0 and gets 0, not 0/0
  for (int e = thread; e < rows * d; e += threads) {
    const float l = tile.l[e / d];
    O[q_start * d + e] = l == 0.0f ? 0.0f : tile.O[e] / l;
  }
  // [end]
}

}  // namespace flash_steps

// Chapter 08: the keys outside, on the device. The marks [n] are those of kv_outer.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/fold_tile.cuh"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/sizes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kNumberBytes = 16;  // of shared memory, beside the tile

// ---- taking turns. *turn is the number of the K/V tile whose block may change a Q tile's O,
// m, l next. A block waits for lower numbers only, and takes its own number when it starts:
// those that it waits for are running, whatever the order in which a GPU starts blocks.

// All threads of the block call it, and may then read what the blocks before have left.
__device__ void wait_for_turn(global<unsigned> turn, unsigned j) {
  // [begin 08.wait-for-turn-cuda]
  if (threadIdx.x == 0) {
    while (atomicAdd(turn, 0u) != j) {  // reads it where the other blocks change it
    }
    __threadfence();  // what they wrote before it is seen after it
  }
  __syncthreads();  // the part is complete, and may join the rows
  // [end]
}

// All threads of the block call it, after their last access to the rows.
__device__ void pass_turn(global<unsigned> turn, unsigned j) {
  // [begin 08.pass-turn-cuda]
  __syncthreads();  // all of the rows are stored, and the part may be overwritten
  if (threadIdx.x == 0) {
    __threadfence();  // ... and are seen before the turn is
    atomicExch(turn, j + 1);
  }
  // [end]
}

// ---- the update

// Lets the part of one K/V tile join `rows` rows from q_start on. The tile's m, l and O are the
// part's, as if there were no other keys; its alpha and l become the factors of the two sides.
__device__ void merge(const TileMemory& tile, int rows, std::int64_t q_start,
                      global<float> O,  // (Nq, d)
                      global<float> m,  // (Nq)
                      global<float> l,  // (Nq)
                      bool normalised, bool last) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = tile.d;

  // [begin 08.merge-cuda]
  for (int r = thread; r < rows; r += threads) {
    // [8] [11] the new maximum, and what carries either side over to it. While there is none
    // above -inf, (-inf) - (-inf) is kept out of the exponents
    const float m_old = m[q_start + r], l_old = l[q_start + r];
    const float m_new = fmaxf(m_old, tile.m[r]);
    const float shift = m_new == -INFINITY ? 0.0f : m_new;
    float alpha = expf(m_old - shift), beta = expf(tile.m[r] - shift);
    const float l_new = alpha * l_old + beta * tile.l[r];

    // [12] a normalised O has been divided by its l, and takes that back before it is added to
    if (normalised) alpha *= l_old;
    if (normalised || last) {  // 0, not 0/0, for a row that has not seen a key yet
      alpha = l_new == 0.0f ? 0.0f : alpha / l_new;
      beta = l_new == 0.0f ? 0.0f : beta / l_new;
    }
    tile.alpha[r] = alpha;
    tile.l[r] = beta;
    l[q_start + r] = l_new;  // [13]
    m[q_start + r] = m_new;
  }
  __syncthreads();  // the factors are complete

  for (int e = thread; e < rows * d; e += threads) {  // [8] [12]
    O[q_start * d + e] = tile.alpha[e / d] * O[q_start * d + e] + tile.l[e / d] * tile.O[e];
  }
  // [end]
}

// ---- the kernels

// One thread: an element of O, and a row or a turn.
__global__ void kv_outer_start_kernel(global<float> O,         // (Nq, d)
                                      global<float> m,         // (Nq)
                                      global<float> l,         // (Nq)
                                      global<unsigned> turns,  // (1 + Tr)
                                      std::int64_t elements, std::int64_t Nq,
                                      std::int64_t count) {
  const std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e < elements) O[e] = 0.0f;  // [2]
  if (e < Nq) m[e] = -INFINITY;
  if (e < Nq) l[e] = 0.0f;
  if (e < count) turns[e] = 0u;
}

// One block: a K/V tile, and all Q tiles that see it.
__global__ void kv_outer_kernel(global<const float> Q,   // (Nq, d)
                                global<const float> K,   // (Nk, d)
                                global<const float> V,   // (Nk, d)
                                global<float> O,         // (Nq, d)
                                global<float> m,         // (Nq)
                                global<float> l,         // (Nq)
                                global<unsigned> turns,  // blocks that have started; (Tr) turns
                                std::int64_t Nq, std::int64_t Nk, int d, int Br, int Bc,
                                std::int64_t offset, float scale, bool normalised) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  dynamic_shared smem;
  const shared<unsigned> number = smem.take<unsigned>(1);
  const TileMemory tile(Br, Bc, d, smem);

  // [begin 08.kv-outer-cuda]
  if (thread == 0) number[0] = atomicAdd(turns, 1u);
  __syncthreads();               // the number is there
  const unsigned j = number[0];  // [5] whoever has a lower one has started
  const std::int64_t k_start = std::int64_t{j} * Bc;
  const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
  for (int e = thread; e < cols * d; e += threads) {  // [6] once for all queries
    tile.K[e] = K[k_start * d + e];
    tile.V[e] = V[k_start * d + e];
  }

  for (std::int64_t i = 0; i * Br < Nq; ++i) {  // [7]
    const std::int64_t q_start = i * Br;
    const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));
    const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, Nk, offset);
    if (k_start >= k_stop) continue;  // hidden: these queries see none of its keys
    for (int r = thread; r < rows; r += threads) {
      tile.visible[r] = static_cast<int>(visible_keys(q_start + r, k_start, cols, offset));
    }
    start_q_tile(tile, Q, q_start, rows);  // [8]
    fold_tile(tile, rows, cols, scale);    // [9] [10] this tile alone: no turn needed

    wait_for_turn(turns + 1 + i, j);
    merge(tile, rows, q_start, O, m, l, normalised, k_start + cols >= k_stop);  // [11]-[13]
    pass_turn(turns + 1 + i, j);
  }
  // [end]
}

void require_arguments(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                       const DeviceMatrix<float>& V, const DeviceMatrix<float>& O,
                       const DeviceArray<float>& m, const DeviceArray<float>& l,
                       const DeviceArray<unsigned>& turns, Tiling tile) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_size("m", m.size(), Q.rows());
  require_size("l", l.size(), Q.rows());
  require_tiling(tile);
  require_size("turns", turns.size(), 1 + ceil_div(Q.rows(), tile.Br));
  require_tile_fits(tile, Q.cols());
}

}  // namespace

void kv_outer_start_cuda(DeviceMatrix<float>& O, DeviceArray<float>& m, DeviceArray<float>& l,
                         DeviceArray<unsigned>& turns) {
  require_size("m", m.size(), O.rows());
  require_size("l", l.size(), O.rows());
  const std::int64_t most = std::max({O.size(), m.size(), turns.size()});
  if (most == 0) return;
  launch(kv_outer_start_kernel, {ceil_div(most, kThreads), kThreads}, O, m, l, turns, O.size(),
         O.rows(), turns.size());
}

void kv_outer_walk_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                        DeviceArray<float>& m, DeviceArray<float>& l,
                        DeviceArray<unsigned>& turns, Tiling tile, bool causal,
                        std::optional<double> scale, Normalise normalise) {
  require_arguments(Q, K, V, O, m, l, turns, tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const float s = resolve_scale<float>(scale, d);
  if (Nq == 0 || Nk == 0) return;

  launch(kv_outer_kernel,
         {ceil_div(Nk, tile.Bc), kThreads, kNumberBytes + tile_shared_bytes(tile, d)}, Q, K, V,
         O, m, l, turns, Nq, Nk, static_cast<int>(d), static_cast<int>(tile.Br),
         static_cast<int>(tile.Bc), mask_offset(Nq, Nk, causal), s,
         normalise == Normalise::every_tile);
}

void kv_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                   const DeviceMatrix<float>& V, DeviceMatrix<float>& O, DeviceArray<float>& m,
                   DeviceArray<float>& l, DeviceArray<unsigned>& turns, Tiling tile,
                   bool causal, std::optional<double> scale, Normalise normalise) {
  require_arguments(Q, K, V, O, m, l, turns, tile);  // before anything is overwritten
  resolve_scale<float>(scale, Q.cols());
  kv_outer_start_cuda(O, m, l, turns);
  kv_outer_walk_cuda(Q, K, V, O, m, l, turns, tile, causal, scale, normalise);
}

}  // namespace flash_steps

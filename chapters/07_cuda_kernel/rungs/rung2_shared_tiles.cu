// Rung 2: tiles in shared memory. Still one thread per query row, but the threads of a block
// load a tile of keys and values together, and each reads it from there.
#include <algorithm>

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/rungs/row_state.cuh"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128, kBc = 32;

// to (kBc, D) = the rows that begin at from, from + stride, ...; zeros where there is none, and
// from channel d on.
template <int D>
__device__ void load_padded(shared<float> to, global<const float> from, std::int64_t stride,
                            int rows, int d) {
  for (int e = static_cast<int>(threadIdx.x); e < kBc * D; e += kThreads) {
    const int c = e / D, x = e % D;
    to[e] = c < rows && x < d ? from[c * stride + x] : 0.0f;
  }
}

// One block: kThreads query rows of one head. One thread: one of them.
template <int D>
__global__ void __launch_bounds__(kThreads)
    rung2_kernel(global<const float> Q, HeadsLayout Q_at,  // [B, H, Nq, d]
                 global<const float> K, HeadsLayout K_at,  // [B, Hkv, Nk, d]
                 global<const float> V, HeadsLayout V_at,  // [B, Hkv, Nk, d]
                 global<float> O, HeadsLayout O_at,        // [B, H, Nq, d]
                 global<float> LSE,                        // (B * H, Nq)
                 std::int64_t offset, float scale) {
  const std::int64_t Nq = Q_at.N, Nk = K_at.N;
  const int d = static_cast<int>(Q_at.d);
  const TilePlace at = tile_place(blockIdx.x, ceil_div(Nq, kThreads), Q_at.B, Q_at.H);
  const std::int64_t kv = kv_head(at.h, Q_at.H, K_at.H);
  const std::int64_t i = at.i * kThreads + threadIdx.x;
  const bool in_range = i < Nq;  // a thread without a row still helps to load

  RowState<D> row;
  if (in_range) start_row(row, Q + Q_at.offset(at.b, at.h, i), d);

  dynamic_shared smem;
  const shared<float> sK = smem.take<float>(kBc * D), sV = smem.take<float>(kBc * D);
  // [begin 07.rung2-cuda]
  const std::int64_t last = std::min<std::int64_t>((at.i + 1) * kThreads, Nq) - 1;
  const std::int64_t k_stop = visible_keys(last, 0, Nk, offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += kBc) {
    const int cols = static_cast<int>(std::min<std::int64_t>(kBc, Nk - k_start));
    load_padded<D>(sK, K + K_at.offset(at.b, kv, k_start), K_at.stride_n, cols, d);
    load_padded<D>(sV, V + V_at.offset(at.b, kv, k_start), V_at.stride_n, cols, d);
    __syncthreads();  // the tile is complete

    const int seen = in_range ? static_cast<int>(visible_keys(i, k_start, cols, offset)) : 0;
    for (int c = 0; c < seen; ++c) fold_key(row, sK + c * D, sV + c * D, D, scale);
    __syncthreads();  // the tile may be overwritten
  }
  // [end]

  if (!in_range) return;
  store_row(row, O + O_at.offset(at.b, at.h, i), d, LSE + ((at.b * Q_at.H + at.h) * Nq + i));
}

}  // namespace

void rung2_shared_tiles(const ForwardBatch& batch) {
  const std::int64_t blocks = ceil_div(batch.Q.N(), kThreads) * batch.LSE.rows();
  with_built_d(batch.Q.d(), [&]<int D>() {
    launch(rung2_kernel<D>, {blocks, kThreads, 2 * kBc * D * 4, "rung 2"}, batch.Q,
           batch.Q.layout(), batch.K, batch.K.layout(), batch.V, batch.V.layout(), batch.O,
           batch.O.layout(), batch.LSE, batch.offset, batch.scale);
  });
}

}  // namespace flash_steps

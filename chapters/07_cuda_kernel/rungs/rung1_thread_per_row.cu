// Rung 1: one thread per query row. The formula, and nothing else: a thread keeps its row of Q
// and O in registers, and reads every key and value from global memory.
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/rungs/row_state.cuh"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One thread: one query row.
template <int D>
__global__ void __launch_bounds__(kThreads)
    rung1_kernel(global<const float> Q, HeadsLayout Q_at,  // [B, H, Nq, d]
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
  if (i >= Nq) return;

  RowState<D> row;
  start_row(row, Q + Q_at.offset(at.b, at.h, i), d);

  // [begin 07.rung1-cuda]
  const std::int64_t seen = visible_keys(i, 0, Nk, offset);
  for (std::int64_t j = 0; j < seen; ++j) {
    fold_key(row, K + K_at.offset(at.b, kv, j), V + V_at.offset(at.b, kv, j), d, scale);
  }
  // [end]

  store_row(row, O + O_at.offset(at.b, at.h, i), d, LSE + ((at.b * Q_at.H + at.h) * Nq + i));
}

}  // namespace

void rung1_thread_per_row(const ForwardBatch& batch) {
  const std::int64_t blocks = ceil_div(batch.Q.N(), kThreads) * batch.LSE.rows();
  with_built_d(batch.Q.d(), [&]<int D>() {
    launch(rung1_kernel<D>, {blocks, kThreads, 0, "rung 1"}, batch.Q, batch.Q.layout(), batch.K,
           batch.K.layout(), batch.V, batch.V.layout(), batch.O, batch.O.layout(), batch.LSE,
           batch.offset, batch.scale);
  });
}

}  // namespace flash_steps

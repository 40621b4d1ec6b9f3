// Rung 3: tiles in registers. Each number that a thread reads from shared memory is used for
// several rows or several keys, as in a fast matrix product.
#include <algorithm>

#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/rungs/register_tiles.cuh"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

// One block: 128 query rows of one head, spread over its threads as register_tiles.cuh says.
// `whole`: rows of all arrays begin at multiples of 16 bytes, and d is a multiple of 4.
template <int D>
__global__ void __launch_bounds__(Tiles<D>::kThreads, D <= 64 ? 2 : 1)
    rung3_kernel(global<const float> Q, HeadsLayout Q_at,  // [B, H, Nq, d]
                 global<const float> K, HeadsLayout K_at,  // [B, Hkv, Nk, d]
                 global<const float> V, HeadsLayout V_at,  // [B, Hkv, Nk, d]
                 global<float> O, HeadsLayout O_at,        // [B, H, Nq, d]
                 global<float> LSE,                        // (B * H, Nq)
                 std::int64_t offset, float scale, bool whole) {
  using T = Tiles<D>;
  const std::int64_t Nq = Q_at.N;
  const TilePlace at = tile_place(blockIdx.x, ceil_div(Nq, T::Br), Q_at.B, Q_at.H);
  const std::int64_t kv = kv_head(at.h, Q_at.H, K_at.H), q_start = at.i * T::Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(T::Br, Nq - q_start));
  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, K_at.N, offset);
  const auto keys_from = [&](std::int64_t k_start) {  // in the tile that begins there
    return static_cast<int>(std::clamp<std::int64_t>(k_stop - k_start, 0, T::Bc));
  };
  const int d = static_cast<int>(Q_at.d);
  const HeadRows Q_rows{Q_at.stride_n, d, whole}, K_rows{K_at.stride_n, d, whole},
      V_rows{V_at.stride_n, d, whole}, O_rows{O_at.stride_n, d, whole};
  const ThreadPlace me = thread_place();

  dynamic_shared smem;
  const shared<float> sQ = smem.take<float>(T::Br * T::kStrideQ);  // (Br, D)
  const shared<float> sK = smem.take<float>(T::Bc * T::kStrideK);  // (Bc, D)
  const shared<float> sV = smem.take<float>(T::Bc * T::kStrideV);  // (Bc, D)
  const shared<float> sP = smem.take<float>(T::Br * T::kStrideP);  // (Br, Bc)
  RowsState<D> state;
  start_rows(state);
  float4 staged[T::kStaged];
  for (int r = 0; r < T::Br; r += T::Bc) {
    fetch<D>(staged, Q + Q_at.offset(at.b, at.h, q_start + r), Q_rows, rows - r);
    put<D>(sQ + r * T::kStrideQ, T::kStrideQ, staged);
  }
  fetch<D>(staged, K + K_at.offset(at.b, kv, 0), K_rows, keys_from(0));
  put<D>(sK, T::kStrideK, staged);

  // [begin 07.rung3-cuda]
  const shared<float> my_Q = sQ + me.row * T::kStrideQ, my_K = sK + me.col * T::kStrideK;
  const shared<float> my_V = sV + 4 * me.col, my_P = sP + me.row * T::kStrideP;
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += T::Bc) {
    const std::int64_t next = k_start + T::Bc;
    const int cols = keys_from(k_start);
    const bool full =
        cols == T::Bc && classify_tile(q_start, rows, k_start, cols, offset) == TileKind::full;
    int seen[kRows];  // looked at in a partial tile only
    if (!full) count_seen(seen, q_start + me.row, k_start, cols, offset);
    __syncthreads();  // K is complete; V and P may be overwritten

    // V is on its way from global memory while S is computed
    fetch<D>(staged, V + V_at.offset(at.b, kv, k_start), V_rows, cols);
    float S[kRows][T::kKeys] = {};
    add_scores<D>(S, my_Q, my_K);
    full ? fold_scores<D, false>(state, S, my_P + me.col, seen, me.col, scale)
         : fold_scores<D, true>(state, S, my_P + me.col, seen, me.col, scale);
    put<D>(sV, T::kStrideV, staged);
    __syncthreads();  // V and P are complete; K may be overwritten

    // and the next K while V is added
    fetch<D>(staged, K + K_at.offset(at.b, kv, next), K_rows, keys_from(next));
    full ? add_values<D, false>(state, my_P, my_V, seen, T::Bc)
         : add_values<D, true>(state, my_P, my_V, seen, cols);
    put<D>(sK, T::kStrideK, staged);
  }
  // [end]

  store_rows(state, O + O_at.offset(at.b, at.h, q_start), O_rows,
             LSE + ((at.b * Q_at.H + at.h) * Nq + q_start), rows);
}

// Whether every row begins at a multiple of 16 bytes and has a multiple of 4 channels.
bool in_pieces_of_16_bytes(const HeadsLayout& at) {
  return at.d % 4 == 0 && at.stride_b % 4 == 0 && at.stride_h % 4 == 0 && at.stride_n % 4 == 0;
}

}  // namespace

void rung3_register_tiles(const ForwardBatch& batch) {
  const bool whole =
      in_pieces_of_16_bytes(batch.Q.layout()) && in_pieces_of_16_bytes(batch.K.layout()) &&
      in_pieces_of_16_bytes(batch.V.layout()) && in_pieces_of_16_bytes(batch.O.layout());
  with_built_d(batch.Q.d(), [&]<int D>() {
    using T = Tiles<D>;
    const std::int64_t blocks = ceil_div(batch.Q.N(), T::Br) * batch.LSE.rows();
    launch(rung3_kernel<D>, {blocks, T::kThreads, T::kSharedBytes, "rung 3"}, batch.Q,
           batch.Q.layout(), batch.K, batch.K.layout(), batch.V, batch.V.layout(), batch.O,
           batch.O.layout(), batch.LSE, batch.offset, batch.scale, whole);
  });
}

}  // namespace flash_steps

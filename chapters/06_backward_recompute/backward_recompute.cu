// Chapter 06: the backward pass on the device, in two forms. The equations and the marks [n]
// are those of backward_recompute.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/load_rows.cuh"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_shapes.hpp"
#include "chapters/06_backward_recompute/backward_tile.cuh"
#include "chapters/06_backward_recompute/causal_walks.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// The tiles leave room for one block on a multiprocessor, or two: so a block has many threads.
constexpr int kThreads = 256;

// What the kernels know of the problem.
struct Problem {
  std::int64_t Nq, Nk;
  int d, Br, Bc;
  std::int64_t offset;  // query i sees the keys j <= i + offset
  float scale;
};

// One warp: one row.
__global__ void delta_kernel(global<const float> dO,    // (Nq, d)
                             global<const float> O,     // (Nq, d)
                             global<const float> dLSE,  // (Nq), or anything
                             global<float> delta,       // (Nq)
                             bool has_dLSE, std::int64_t Nq, int d) {
  const std::int64_t warps = blockDim.x / kWarpSize;
  const std::int64_t i = blockIdx.x * warps + threadIdx.x / kWarpSize;
  if (i >= Nq) return;
  // [begin 06.delta-cuda]
  // [4] over the whole row, once: no single tile could know it
  const float D = row_dot(dO + i * d, O + i * d, d);
  if (threadIdx.x % kWarpSize == 0) delta[i] = has_dLSE ? D - dLSE[i] : D;
  // [end]
}

// [3] One thread: one element, then one a grid further.
__global__ void zero_kernel(global<float> x, std::int64_t size) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += step)
    x[i] = 0.0f;
}

// Loads what a tile of query rows brings along.
__device__ void load_query_tile(const BackwardMemory& tile,
                                global<const float> Q,      // (Nq, d)
                                global<const float> dO,     // (Nq, d)
                                global<const float> m,      // (Nq)
                                global<const float> l,      // (Nq)
                                global<const float> delta,  // (Nq)
                                std::int64_t q_start, int rows) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  load_rows(tile.Q, Q + q_start * tile.d, tile.d, rows, tile.d);
  load_rows(tile.dO, dO + q_start * tile.d, tile.d, rows, tile.d);
  for (int r = thread; r < rows; r += threads) {
    tile.m[r] = m[q_start + r];
    tile.l[r] = l[q_start + r];
    tile.delta[r] = delta[q_start + r];
  }
}

// One block: one tile of keys, which stays while the query tiles that see it pass; and with it
// dK and dV. If add_dQ, each pair's part of dQ is added in global memory.
__global__ void backward_key_tile_kernel(global<const float> Q,      // (Nq, d)
                                         global<const float> K,      // (Nk, d)
                                         global<const float> V,      // (Nk, d)
                                         global<const float> m,      // (Nq)
                                         global<const float> l,      // (Nq)
                                         global<const float> dO,     // (Nq, d)
                                         global<const float> delta,  // (Nq)
                                         global<float> dQ,           // (Nq, d)
                                         global<float> dK,           // (Nk, d)
                                         global<float> dV,           // (Nk, d)
                                         bool add_dQ, Problem p) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = p.d, Bc = p.Bc;
  // [5] the first key tile has the longest walk, and its block starts first
  const std::int64_t k_start = std::int64_t{blockIdx.x} * Bc;
  const int cols = static_cast<int>(std::min<std::int64_t>(Bc, p.Nk - k_start));

  dynamic_shared smem;
  const BackwardMemory tile(p.Br, Bc, d, smem);
  const shared<float> sdK = smem.take<float>(Bc * d), sdV = smem.take<float>(Bc * d);
  load_rows(tile.K, K + k_start * d, d, cols, d);  // [6]
  load_rows(tile.V, V + k_start * d, d, cols, d);
  for (int e = thread; e < cols * d; e += threads) sdK[e] = sdV[e] = 0.0f;  // [7]

  // [begin 06.walk-queries-cuda]
  for (std::int64_t q_start = first_query_tile(k_start, p.Nq, p.Br, p.offset); q_start < p.Nq;
       q_start += p.Br) {  // [8]
    const int rows = static_cast<int>(std::min<std::int64_t>(p.Br, p.Nq - q_start));
    load_query_tile(tile, Q, dO, m, l, delta, q_start, rows);  // [9]
    set_visible(tile, q_start, rows, k_start, cols, p.offset);
    __syncthreads();  // the pair of tiles is complete

    rebuild_P(tile, rows, cols, p.scale);  // [10] [11]
    compute_dP(tile, rows, cols);          // [13]
    compute_dS(tile, rows, cols);          // [14]
    __syncthreads();                       // P and dS are complete

    add_dV(sdV, tile, rows, cols);                                            // [12]
    add_dK(sdK, tile, rows, cols, p.scale);                                   // [16]
    if (add_dQ) add_dQ_atomically(dQ + q_start * d, d, tile, rows, p.scale);  // [15]
    __syncthreads();  // the query tile may be overwritten
  }
  // [end]

  for (int e = thread; e < cols * d; e += threads) {  // [18] each thread what it added up
    dK[k_start * d + e] = sdK[e];
    dV[k_start * d + e] = sdV[e];
  }
}

// One block: one tile of queries, which stays while the key tiles that it sees pass; and with
// it dQ. The lines of the algorithm in the other order.
__global__ void backward_query_tile_kernel(global<const float> Q,      // (Nq, d)
                                           global<const float> K,      // (Nk, d)
                                           global<const float> V,      // (Nk, d)
                                           global<const float> m,      // (Nq)
                                           global<const float> l,      // (Nq)
                                           global<const float> dO,     // (Nq, d)
                                           global<const float> delta,  // (Nq)
                                           global<float> dQ,           // (Nq, d)
                                           Problem p) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = p.d, Br = p.Br;
  // [8] here the last query tile has the longest walk
  const std::int64_t q_start = (std::int64_t{gridDim.x} - 1 - blockIdx.x) * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, p.Nq - q_start));

  dynamic_shared smem;
  const BackwardMemory tile(Br, p.Bc, d, smem);
  const shared<float> sdQ = smem.take<float>(Br * d);
  load_query_tile(tile, Q, dO, m, l, delta, q_start, rows);  // [9]
  for (int e = thread; e < rows * d; e += threads) sdQ[e] = 0.0f;

  // [begin 06.walk-keys-cuda]
  const std::int64_t k_stop = visible_keys(q_start + rows - 1, 0, p.Nk, p.offset);
  for (std::int64_t k_start = 0; k_start < k_stop; k_start += p.Bc) {  // [5]
    const int cols = static_cast<int>(std::min<std::int64_t>(p.Bc, p.Nk - k_start));
    load_rows(tile.K, K + k_start * d, d, cols, d);  // [6]
    load_rows(tile.V, V + k_start * d, d, cols, d);
    set_visible(tile, q_start, rows, k_start, cols, p.offset);
    __syncthreads();  // the pair of tiles is complete

    rebuild_P(tile, rows, cols, p.scale);  // [10] [11]
    compute_dP(tile, rows, cols);          // [13]
    compute_dS(tile, rows, cols);          // [14]
    __syncthreads();                       // dS is complete

    add_dQ(sdQ, tile, rows, p.scale);  // [15]
    __syncthreads();                   // the key tile may be overwritten
  }
  // [end]

  for (int e = thread; e < rows * d; e += threads) dQ[q_start * d + e] = sdQ[e];
}

// ---- launchers

void launch_delta(const DeviceMatrix<float>& dO, const DeviceMatrix<float>& O,
                  const DeviceArray<float>* dLSE, DeviceArray<float>& delta) {
  launch(delta_kernel, {ceil_div(delta.size(), kThreads / kWarpSize), kThreads}, dO, O,
         dLSE ? *dLSE : delta, delta, dLSE != nullptr, delta.size(),
         static_cast<int>(O.cols()));
}

void launch_zero(DeviceArray<float>& x) {
  launch(zero_kernel, {ceil_div(x.size(), 8 * kThreads), kThreads}, x, x.size());
}

void launch_key_tiles(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                      const DeviceMatrix<float>& V, const DeviceArray<float>& m,
                      const DeviceArray<float>& l, const DeviceMatrix<float>& dO,
                      const DeviceArray<float>& delta, DeviceMatrix<float>& dQ,
                      DeviceMatrix<float>& dK, DeviceMatrix<float>& dV, bool add_dQ,
                      const Problem& p) {
  launch(backward_key_tile_kernel,
         {ceil_div(p.Nk, p.Bc), kThreads, key_tile_shared_bytes({p.Br, p.Bc}, p.d)}, Q, K, V, m,
         l, dO, delta, dQ, dK, dV, add_dQ, p);
}

void launch_query_tiles(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, const DeviceArray<float>& m,
                        const DeviceArray<float>& l, const DeviceMatrix<float>& dO,
                        const DeviceArray<float>& delta, DeviceMatrix<float>& dQ,
                        const Problem& p) {
  launch(backward_query_tile_kernel,
         {ceil_div(p.Nq, p.Br), kThreads, query_tile_shared_bytes({p.Br, p.Bc}, p.d)}, Q, K, V,
         m, l, dO, delta, dQ, p);
}

}  // namespace

void backward_recompute_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                             const DeviceMatrix<float>& V, const DeviceMatrix<float>& O,
                             const DeviceArray<float>& m, const DeviceArray<float>& l,
                             const DeviceMatrix<float>& dO, DeviceArray<float>& delta,
                             DeviceMatrix<float>& dQ, DeviceMatrix<float>& dK,
                             DeviceMatrix<float>& dV, Tiling tile, bool causal,
                             std::optional<double> scale, const DeviceArray<float>* dLSE,
                             BackwardForm form) {
  require_backward_shapes({.Q = shape_of(Q),
                           .K = shape_of(K),
                           .V = shape_of(V),
                           .O = shape_of(O),
                           .dO = shape_of(dO),
                           .dQ = shape_of(dQ),
                           .dK = shape_of(dK),
                           .dV = shape_of(dV),
                           .m = m.size(),
                           .l = l.size(),
                           .delta = delta.size(),
                           .dLSE = dLSE ? std::optional(dLSE->size()) : std::nullopt});
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const float s = resolve_scale<float>(scale, d);
  require_backward_fits(tile, d);

  const Problem problem{Nq,
                        Nk,
                        static_cast<int>(d),
                        static_cast<int>(tile.Br),
                        static_cast<int>(tile.Bc),
                        mask_offset(Nq, Nk, causal),
                        s};
  const bool atomically = form == BackwardForm::atomic_dQ;
  if (Nq > 0) launch_delta(dO, O, dLSE, delta);  // [4]
  if (Nq > 0 && atomically) launch_zero(dQ);     // [3]
  if (Nk > 0) launch_key_tiles(Q, K, V, m, l, dO, delta, dQ, dK, dV, atomically, problem);
  if (Nq > 0 && !atomically) launch_query_tiles(Q, K, V, m, l, dO, delta, dQ, problem);
}

}  // namespace flash_steps

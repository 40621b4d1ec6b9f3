// Chapter 07: the backward pass for a batch of heads, on the device: its walks are in
// batched_backward.cuh. The equations and the marks [n] are those of batched_backward.hpp.
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "chapters/07_cuda_kernel/batched_backward.cuh"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// One warp: one row.
__global__ void delta_kernel(global<const float> dO,    // [B, H, Nq, d]
                             global<const float> O,     // [B, H, Nq, d]
                             global<const float> dLSE,  // (B * H, Nq), or anything
                             global<float> delta,       // (B * H, Nq)
                             bool has_dLSE, BackwardProblem p) {
  const std::int64_t warps = blockDim.x / kWarpSize, H = p.O.H, Nq = p.O.N;
  const std::int64_t row = blockIdx.x * warps + threadIdx.x / kWarpSize;
  if (row >= p.O.B * H * Nq) return;
  const std::int64_t b = row / Nq / H, h = row / Nq % H, i = row % Nq;
  // [4]
  float D =
      row_dot(dO + p.dO.offset(b, h, i), O + p.O.offset(b, h, i), static_cast<int>(p.O.d));
  if (has_dLSE) D -= dLSE[row];
  if (threadIdx.x % kWarpSize == 0) delta[row] = D;
}

// The work on a pair of tiles: chapter 06's steps, as they are.
struct RebuildPair {
  __device__ void operator()(const BackwardMemory& tile, int rows, int cols, float scale,
                             const TileOrigin&) const {
    rebuild_P(tile, rows, cols, scale);  // [10] [11]
    compute_dP(tile, rows, cols);        // [13]
    compute_dS(tile, rows, cols);        // [14]
  }
};

}  // namespace

void launch_delta(const BackwardBatch& x, const DeviceMatrix<float>* dLSE) {
  if (x.delta.size() == 0) return;
  launch(delta_kernel,
         {ceil_div(x.delta.size(), kBackwardThreads / kWarpSize), kBackwardThreads}, x.dO, x.O,
         dLSE ? *dLSE : x.delta, x.delta, dLSE != nullptr, x.problem());
}

void batched_backward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                           const DeviceHeads<float>& V, const DeviceHeads<float>& O,
                           const DeviceMatrix<float>& LSE, const DeviceHeads<float>& dO,
                           DeviceMatrix<float>& delta, DeviceHeads<float>& dQ,
                           DeviceHeads<float>& dK, DeviceHeads<float>& dV, Tiling tile,
                           bool causal, std::optional<double> scale,
                           const DeviceMatrix<float>* dLSE) {
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), batch_shape(O),
                       shape_of(LSE));
  require_gradient_shapes(batch_shape(Q), batch_shape(K), batch_shape(dO), batch_shape(dQ),
                          batch_shape(dK), batch_shape(dV), shape_of(delta),
                          dLSE ? std::optional(shape_of(*dLSE)) : std::nullopt);
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.d());
  require_backward_fits(tile, Q.d());

  const BackwardBatch batch{
      Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile, mask_offset(Q.N(), K.N(), causal), s};
  launch_delta(batch, dLSE);               // [4]
  launch_key_tiles(batch, RebuildPair{});  // [5]-[18]
  launch_query_tiles(batch, RebuildPair{});
}

}  // namespace flash_steps

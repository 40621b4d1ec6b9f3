// Chapter 12: the gradients of attention with dropout, on the device: chapter 07's walks with
// the mask in each pair of tiles. The equations and the marks [n] are those of
// dropout_backward.hpp.
#include "chapters/07_cuda_kernel/batched_backward.cuh"
#include "chapters/12_dropout/dropout_arguments.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/each_weight.cuh"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// The work on a pair of tiles: dS, and Z * P in the place of P.
template <class Mask>
struct RebuildDropped {
  Mask mask;
  float keep_factor;

  __device__ void operator()(const BackwardMemory& tile, int rows, int cols, float scale,
                             const TileOrigin& origin) const {
    // [begin 12.mask-gradients-cuda]
    rebuild_P(tile, rows, cols, scale);  // [10] [11] without dropout
    compute_dP(tile, rows, cols);        // [13] dO V^T, without dropout
    __syncthreads();                     // P and dP are complete
    for_each_weight(tile.visible, rows, cols, mask, origin, [&](int r, int c, bool kept) {
      const int at = r * tile.Bc + c;
      const float Z = kept ? keep_factor : 0.0f, P = tile.P[at];
      // [14] dP went through the mask, the softmax did not: Z on dP, none on P
      tile.dS[at] = P * (Z * tile.dS[at] - tile.delta[r]);
      tile.P[at] = Z * P;  // for dV: the values were multiplied by these
    });
    // [end]
  }
};

}  // namespace

void dropout_backward_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                           const DeviceHeads<float>& V, const DeviceHeads<float>& O,
                           const DeviceMatrix<float>& LSE, const DeviceHeads<float>& dO,
                           DeviceMatrix<float>& delta, DeviceHeads<float>& dQ,
                           DeviceHeads<float>& dK, DeviceHeads<float>& dV,
                           const Dropout& dropout, Tiling tile, bool causal,
                           std::optional<double> scale, const DeviceHeads<std::uint8_t>* mask) {
  require_dropout_arguments(Q, K, V, batch_shape(O), shape_of(LSE), dropout, mask);
  require_gradient_shapes(batch_shape(Q), batch_shape(K), batch_shape(dO), batch_shape(dQ),
                          batch_shape(dK), batch_shape(dV), shape_of(delta), {});
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.d());
  require_backward_fits(tile, Q.d());

  // [4] of O as it is after dropout
  const BackwardBatch batch{
      Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile, mask_offset(Q.N(), K.N(), causal), s};
  launch_delta(batch, nullptr);
  with_mask(mask, dropout, Q.H(), [&]<class Mask>(const Mask& source) {
    const RebuildDropped<Mask> rebuild{source, dropout.keep_factor<float>()};
    launch_key_tiles(batch, rebuild);  // [5]-[18]
    launch_query_tiles(batch, rebuild);
  });
}

}  // namespace flash_steps

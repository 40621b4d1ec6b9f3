#include "chapters/07_cuda_kernel/batched_backward.hpp"

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "chapters/07_cuda_kernel/batched_heads.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {

template <class T>
void batched_backward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                          HeadsView<const T> O, MatrixIn<T> LSE, HeadsView<const T> dO,
                          MatrixOut<T> delta, HeadsView<T> dQ, HeadsView<T> dK, HeadsView<T> dV,
                          Tiling tile, bool causal, std::optional<double> scale,
                          const Matrix<T>* dLSE) {
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), batch_shape(O),
                       shape_of(LSE));
  require_gradient_shapes(batch_shape(Q), batch_shape(K), batch_shape(dO), batch_shape(dQ),
                          batch_shape(dK), batch_shape(dV), shape_of(delta),
                          dLSE ? std::optional(shape_of(*dLSE)) : std::nullopt);
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.d());
  const Index offset = mask_offset(Q.N(), K.N(), causal);

  for_each_head_gradient<T>(
      O, LSE, dO, delta, dQ, dK, dV, dLSE,
      [&](Index b, Index h, Index kv, const Vector<T>& m, const Vector<T>& l, const auto& D) {
        add_gradients<T>(Q.head(b, h), K.head(b, kv), V.head(b, kv), m, l, dO.head(b, h), D,
                         dQ.head(b, h), dK.head(b, kv), dV.head(b, kv), tile, offset, s);
      });
}

template void batched_backward_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                          HeadsView<const float>, HeadsView<const float>,
                                          MatrixIn<float>, HeadsView<const float>,
                                          MatrixOut<float>, HeadsView<float>, HeadsView<float>,
                                          HeadsView<float>, Tiling, bool, std::optional<double>,
                                          const Matrix<float>*);
template void batched_backward_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                           HeadsView<const double>, HeadsView<const double>,
                                           MatrixIn<double>, HeadsView<const double>,
                                           MatrixOut<double>, HeadsView<double>,
                                           HeadsView<double>, HeadsView<double>, Tiling, bool,
                                           std::optional<double>, const Matrix<double>*);

}  // namespace flash_steps

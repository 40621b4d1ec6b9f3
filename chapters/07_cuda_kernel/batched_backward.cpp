#include "chapters/07_cuda_kernel/batched_backward.hpp"

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "common/tensor/parallel_for.hpp"
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
  const Index H = Q.H(), Hkv = K.H();
  const Index offset = mask_offset(Q.N(), K.N(), causal);

  // [begin 07.batched-backward]
  // one turn: a key/value head, with all the query heads that share it. They add to its dK and
  // dV one after another, always in the same order
  parallel_for(Q.B() * Hkv, true, [&](Index index) {
    const Index b = index / Hkv, kv = index % Hkv, group = H / Hkv;
    dK.head(b, kv).setZero();  // [7]
    dV.head(b, kv).setZero();
    for (Index h = kv * group; h < (kv + 1) * group; ++h) {
      // exp(S - LSE) is exp(S - m) / l with m = LSE and l = 1; or l = 0, if there was no key
      const Vector<T> m = LSE.row(b * H + h).transpose();
      const Vector<T> l = (m.array() != -kInf<T>).template cast<T>();
      const Vector<T> dm = dLSE ? Vector<T>(dLSE->row(b * H + h).transpose()) : Vector<T>();
      const auto D = delta.row(b * H + h).transpose();
      compute_delta<T>(dO.head(b, h), O.head(b, h), dLSE ? &dm : nullptr, D);  // [4]
      dQ.head(b, h).setZero();                                                 // [3]
      add_gradients<T>(Q.head(b, h), K.head(b, kv), V.head(b, kv), m, l, dO.head(b, h), D,
                       dQ.head(b, h), dK.head(b, kv), dV.head(b, kv), tile, offset,
                       s);  // [5]-[19]
    }
  });
  // [end]
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

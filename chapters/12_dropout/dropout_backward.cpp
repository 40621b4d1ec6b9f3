#include "chapters/12_dropout/dropout_backward.hpp"

#include <algorithm>

#include "chapters/06_backward_recompute/backward_tile.hpp"
#include "chapters/06_backward_recompute/causal_walks.hpp"
#include "chapters/07_cuda_kernel/batched_heads.hpp"
#include "chapters/12_dropout/dropout_arguments.hpp"
#include "chapters/12_dropout/keep_row.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// dS from dO V^T in its place and P; and P becomes Z * P. In place of chapter 06's compute_dS.
template <class T, class Mask>
void dropout_dS(BackwardTile<T>& pair, VectorIn<T> delta, std::span<const Index> visible,
                const Mask& mask, const TileOrigin& tile, T keep_factor) {
  Vector<T> Z(pair.P.cols());
  // [begin 12.mask-gradients]
  for (Index r = 0; r < pair.P.rows(); ++r) {
    const Index seen = visible[static_cast<std::size_t>(r)];
    keep_row<T>(Z.head(seen), mask, tile, r, keep_factor);  // the forward pass's, again
    const auto Zr = Z.head(seen).transpose().array();
    auto P = pair.P.row(r).head(seen).array(), dS = pair.dS.row(r).head(seen).array();
    // [14] dP went through the mask, the softmax did not: Z on dP, none on P
    dS = P * (Zr * dS - delta[r]);
    P *= Zr;  // for dV: the values were multiplied by these
  }
  // [end]
}

// Adds what query head h of batch b contributes to its dQ and to dK and dV of its key/value
// head.
template <class T, class Mask>
void add_head_gradients(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, VectorIn<T> m,
                        VectorIn<T> l, MatrixIn<T> dO, VectorIn<T> delta, MatrixOut<T> dQ,
                        MatrixOut<T> dK, MatrixOut<T> dV, Index b, Index h, Tiling tile,
                        Index offset, T scale, const Mask& mask, T keep_factor) {
  const Index Nq = Q.rows(), Nk = K.rows();
  const auto add_pair = [&](Index q_start, Index k_start) {
    const Index rows = std::min(tile.Br, Nq - q_start), cols = std::min(tile.Bc, Nk - k_start);
    const auto Qi = Q.middleRows(q_start, rows), dOi = dO.middleRows(q_start, rows);
    const auto Kj = K.middleRows(k_start, cols), Vj = V.middleRows(k_start, cols);
    const auto mi = m.segment(q_start, rows), li = l.segment(q_start, rows);
    const auto visible = count_used_keys<T>(li, q_start, k_start, cols, offset);

    // [begin 12.backward-tile]
    BackwardTile<T> pair;
    rebuild_P<T>(pair, Qi, Kj, mi, li, scale, visible);  // [10] [11] without dropout
    compute_dP<T>(pair, dOi, Vj);                        // [13] dO V^T, without dropout
    dropout_dS<T>(pair, delta.segment(q_start, rows), visible, mask, {b, h, q_start, k_start},
                  keep_factor);                                         // [13] [14]
    add_dV<T>(dV.middleRows(k_start, cols), pair, dOi, visible);        // [12]
    add_dQ<T>(dQ.middleRows(q_start, rows), pair, Kj, scale, visible);  // [15]
    add_dK<T>(dK.middleRows(k_start, cols), pair, Qi, scale, visible);  // [16]
    // [end]
  };
  for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {  // [5]
    for (Index q_start = first_query_tile(k_start, Nq, tile.Br, offset); q_start < Nq;
         q_start += tile.Br) {  // [8]
      add_pair(q_start, k_start);
    }
  }
}

}  // namespace

template <class T>
void dropout_backward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                          HeadsView<const T> O, MatrixIn<T> LSE, HeadsView<const T> dO,
                          MatrixOut<T> delta, HeadsView<T> dQ, HeadsView<T> dK, HeadsView<T> dV,
                          const Dropout& dropout, Tiling tile, bool causal,
                          std::optional<double> scale,
                          const HeadsView<const std::uint8_t>* mask) {
  require_dropout_arguments(Q, K, V, batch_shape(O), shape_of(LSE), dropout, mask);
  require_gradient_shapes(batch_shape(Q), batch_shape(K), batch_shape(dO), batch_shape(dQ),
                          batch_shape(dK), batch_shape(dV), shape_of(delta), {});
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.d()), keep_factor = dropout.keep_factor<T>();
  const Index offset = mask_offset(Q.N(), K.N(), causal);

  with_mask(mask, dropout, Q.H(), [&](const auto& source) {
    for_each_head_gradient<T>(
        O, LSE, dO, delta, dQ, dK, dV, nullptr,
        [&](Index b, Index h, Index kv, const Vector<T>& m, const Vector<T>& l, const auto& D) {
          // the mask is that of the query head: each head of a group drops other weights
          add_head_gradients<T>(Q.head(b, h), K.head(b, kv), V.head(b, kv), m, l, dO.head(b, h),
                                D, dQ.head(b, h), dK.head(b, kv), dV.head(b, kv), b, h, tile,
                                offset, s, source, keep_factor);
        });
  });
}

template void dropout_backward_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                          HeadsView<const float>, HeadsView<const float>,
                                          MatrixIn<float>, HeadsView<const float>,
                                          MatrixOut<float>, HeadsView<float>, HeadsView<float>,
                                          HeadsView<float>, const Dropout&, Tiling, bool,
                                          std::optional<double>,
                                          const HeadsView<const std::uint8_t>*);
template void dropout_backward_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                           HeadsView<const double>, HeadsView<const double>,
                                           MatrixIn<double>, HeadsView<const double>,
                                           MatrixOut<double>, HeadsView<double>,
                                           HeadsView<double>, HeadsView<double>, const Dropout&,
                                           Tiling, bool, std::optional<double>,
                                           const HeadsView<const std::uint8_t>*);

}  // namespace flash_steps

#include "common/reference/heads.hpp"

#include <string>

#include "common/tensor/require.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

std::string sizes_text(Index B, Index H, Index N, Index d) {
  return "[" + std::to_string(B) + ", " + std::to_string(H) + ", " + std::to_string(N) + ", " +
         std::to_string(d) + "]";
}

// axes: what the sizes are, "[B, Hkv, Nk, d]".
void require_sizes(const char* name, HeadsView<const double> X, const char* axes, Index B,
                   Index H, Index N, Index d) {
  require(X.B() == B && X.H() == H && X.N() == N && X.d() == d,
          std::string(name) + " must be " + axes + " = " + sizes_text(B, H, N, d) + ", found " +
              sizes_text(X.B(), X.H(), X.N(), X.d()));
}

// What reference_attention does not see, or would not if there are no heads.
void check(HeadsView<const double> Q, HeadsView<const double> K, HeadsView<const double> V,
           const ReferenceHeadsOptions& options) {
  const Index B = Q.B(), H = Q.H(), Hkv = K.H(), Nk = K.N(), d = Q.d();
  resolve_scale<double>(options.scale, d);  // throws
  require_sizes("K", K, "[B, Hkv, Nk, d]", B, Hkv, Nk, d);
  require_sizes("V", V, "[B, Hkv, Nk, d]", B, Hkv, Nk, d);
  require(Hkv == 0 ? H == 0 : H % Hkv == 0,
          "the number of key/value heads must divide the number of heads, found " +
              std::to_string(Hkv) + " and " + std::to_string(H));

  const Index masks = static_cast<Index>(options.masks.size());
  require(options.dropout >= 0 && options.dropout < 1,
          "dropout must be at least 0 and below 1, found " + std::to_string(options.dropout));
  require(masks == B * H || (masks == 0 && options.dropout == 0),
          "there must be a mask for each of the " + std::to_string(B * H) + " heads, found " +
              std::to_string(masks));
}

// The options of the head in row `head` of LSE.
ReferenceOptions head_options(const ReferenceHeadsOptions& options, Index head) {
  ReferenceOptions one;
  one.scale = options.scale;
  one.causal = options.causal;
  one.dropout = options.dropout;
  if (!options.masks.empty()) one.mask = &options.masks[static_cast<std::size_t>(head)];
  return one;
}

}  // namespace

ReferenceHeadsResult reference_attention_heads(HeadsView<const double> Q,
                                               HeadsView<const double> K,
                                               HeadsView<const double> V,
                                               const ReferenceHeadsOptions& options) {
  check(Q, K, V, options);
  const Index B = Q.B(), H = Q.H(), Hkv = K.H(), Nq = Q.N(), d = Q.d();
  ReferenceHeadsResult result{HeadsArray<double>(B, H, Nq, d), Matrix<double>(B * H, Nq)};

  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      const Index kv = h / (H / Hkv);
      const ReferenceResult head = reference_attention(
          Q.head(b, h), K.head(b, kv), V.head(b, kv), head_options(options, b * H + h));
      result.O.head(b, h) = head.O;
      result.LSE.row(b * H + h) = head.LSE.transpose();
    }
  }
  return result;
}

ReferenceHeadsGradients reference_backward_heads(HeadsView<const double> Q,
                                                 HeadsView<const double> K,
                                                 HeadsView<const double> V,
                                                 HeadsView<const double> dO,
                                                 const ReferenceHeadsOptions& options,
                                                 const Matrix<double>* dLSE) {
  check(Q, K, V, options);
  const Index B = Q.B(), H = Q.H(), Hkv = K.H(), Nq = Q.N(), Nk = K.N(), d = Q.d();
  require_sizes("dO", dO, "[B, H, Nq, d]", B, H, Nq, d);
  if (dLSE != nullptr) require_shape("dLSE", shape_of(*dLSE), {B * H, Nq});
  ReferenceHeadsGradients gradients{HeadsArray<double>(B, H, Nq, d),
                                    HeadsArray<double>(B, Hkv, Nk, d),
                                    HeadsArray<double>(B, Hkv, Nk, d)};

  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      const Index kv = h / (H / Hkv);
      Vector<double> dLSE_head = Vector<double>::Zero(Nq);
      if (dLSE != nullptr) dLSE_head = dLSE->row(b * H + h).transpose();
      const ReferenceGradients head =
          reference_backward(Q.head(b, h), K.head(b, kv), V.head(b, kv), dO.head(b, h),
                             head_options(options, b * H + h), &dLSE_head);
      gradients.dQ.head(b, h) = head.dQ;
      gradients.dK.head(b, kv) += head.dK;
      gradients.dV.head(b, kv) += head.dV;
    }
  }
  return gradients;
}

}  // namespace flash_steps

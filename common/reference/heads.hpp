// The oracle for batches of heads: attention.hpp, once for every query head.
//
// With fewer key/value heads than query heads (GQA), H / Hkv query heads share each of them:
// query head h attends to key/value head h / (H / Hkv), and the gradients of K and V are summed
// over the query heads that share them.
//
// Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from
// Multi-Head Checkpoints" (arXiv:2305.13245), section 2.2.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/reference/attention.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

struct ReferenceHeadsOptions {
  std::optional<double> scale = {};  // without a value: 1 / sqrt(d)
  bool causal = false;               // key j is visible to query i iff j <= i + Nk - Nq
  double dropout = 0;                // the p of 1/(1-p), 0 <= p < 1; above 0 it needs masks
  // B * H of them or none, that of (b, h) at b * H + h: (Nq, Nk), 0 = dropped, else kept.
  std::vector<Matrix<std::uint8_t>> masks = {};
};

struct ReferenceHeadsResult {
  HeadsArray<double> O;  // [B, H, Nq, d]
  Matrix<double> LSE;    // (B * H, Nq), that of (b, h) in row b * H + h
};

struct ReferenceHeadsGradients {
  HeadsArray<double> dQ;      // [B, H, Nq, d]
  HeadsArray<double> dK, dV;  // [B, Hkv, Nk, d]
};

// Q [B, H, Nq, d], K and V [B, Hkv, Nk, d], where Hkv divides H; B, H, Nq and Nk may be 0 (Hkv
// only if H is), d must be at least 1. Edges and errors are those of reference_attention;
// std::invalid_argument as well if B, Hkv or the number of masks does not fit.
ReferenceHeadsResult reference_attention_heads(HeadsView<const double> Q,
                                               HeadsView<const double> K,
                                               HeadsView<const double> V,
                                               const ReferenceHeadsOptions& options = {});

// dO [B, H, Nq, d], dLSE (B * H, Nq), null: 0. Edges and errors are those of
// reference_backward and of reference_attention_heads.
ReferenceHeadsGradients reference_backward_heads(HeadsView<const double> Q,
                                                 HeadsView<const double> K,
                                                 HeadsView<const double> V,
                                                 HeadsView<const double> dO,
                                                 const ReferenceHeadsOptions& options = {},
                                                 const Matrix<double>* dLSE = nullptr);

}  // namespace flash_steps

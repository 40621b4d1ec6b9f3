// Chapter 07: the backward pass for a batch of heads, on the CPU.
//
//   D  = rowsum(dO * O)          (B * H, Nq)       entry by entry; delta = D - dLSE
//   P  = exp(S - LSE)            (Nq, Nk) a head   rebuilt; only one tile exists at a time
//   dS = P * (dP - D + dLSE)     (Nq, Nk) a head   likewise, with dP = dO V^T
//   dQ = scale * dS K            [B, H, Nq, d]     head by head
//   dK = sum scale * dS^T Q      [B, Hkv, Nk, d]   over the query heads that share it
//   dV = sum P^T dO              [B, Hkv, Nk, d]   likewise
//
// [n] marks line n of Algorithm 2 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// The gradients of batched_forward_cpu, from its O and LSE for the same Q, K, V, mask and
// scale, and from dO [B, H, Nq, d], the gradient of a loss for O, and dLSE (B * H, Nq), that
// for LSE (null: 0). -> dQ, dK, dV, and delta (B * H, Nq), which says nothing for rows that see
// no key. All are overwritten; each array has strides of its own, and the heads that are
// written must not overlap. T = float or double; sizes as in batched_forward_cpu. P comes from
// LSE alone: what that costs in precision is in chapter 05. Edges are those of chapter 06: a
// row with LSE = -inf takes no part, keys that a row does not see never enter its gradients nor
// it theirs, and NaN goes where its row and keys go. Same bits for any number of threads.
// Throws std::invalid_argument for shapes that do not fit, Br or Bc < 1, or a scale not finite
// in T.
template <class T>
void batched_backward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                          HeadsView<const T> O, MatrixIn<T> LSE, HeadsView<const T> dO,
                          MatrixOut<T> delta, HeadsView<T> dQ, HeadsView<T> dK, HeadsView<T> dV,
                          Tiling tile = {}, bool causal = false,
                          std::optional<double> scale = {}, const Matrix<T>* dLSE = nullptr);

}  // namespace flash_steps

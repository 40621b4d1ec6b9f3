// Chapter 12: the gradients of attention with dropout, on the CPU. The mask is computed again;
// nobody stored it.
//
//   D  = rowsum(dO * O)          (Nq)       O is that after dropout
//   P  = exp(S - LSE)            (Nq, Nk)   rebuilt, without dropout; only one tile exists
//   Z  = mask / (1 - p)          (Nq, Nk)   likewise, the forward pass's
//   dP = Z * (dO V^T)            (Nq, Nk)   likewise; entry by entry
//   dS = P * (dP - D)            (Nq, Nk)   likewise
//   dQ = scale * dS K            (Nq, d)
//   dK = scale * dS^T Q          (Nk, d)    summed over the query heads that share K and V
//   dV = (Z * P)^T dO            (Nk, d)    likewise
//
// [n] marks line n of Algorithm 2 in FlashAttention-2 (Dao 2023, arXiv:2307.08691), which has
// no dropout.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// Q, O, dO [B, H, Nq, d], K, V [B, Hkv, Nk, d], LSE (B * H, Nq), with O and LSE as
// dropout_forward_cpu gives them for the same Q, K, V, dropout, mask, causal and scale; dO is
// the gradient of the loss for O. -> dQ [B, H, Nq, d], dK, dV [B, Hkv, Nk, d], and delta
// (B * H, Nq) = rowsum(dO * O), which says nothing for rows that see no key. All are
// overwritten. T = float or double, 1 <= d <= 256, Hkv divides H; other sizes may be 0. Same
// bits for any number of threads.
//
// Edges are those of backward_recompute_cpu: a row that sees no key adds nothing and has dQ =
// 0, whatever its dO holds; keys that a row does not see never enter. A row whose weights were
// all dropped has O = 0, D = 0 and dP = 0: its dQ is 0, and it adds nothing.
//
// Throws std::invalid_argument as dropout_forward_cpu does, or for dO, delta or a gradient of
// another shape.
template <class T>
void dropout_backward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                          HeadsView<const T> O, MatrixIn<T> LSE, HeadsView<const T> dO,
                          MatrixOut<T> delta, HeadsView<T> dQ, HeadsView<T> dK, HeadsView<T> dV,
                          const Dropout& dropout, Tiling tile = {}, bool causal = false,
                          std::optional<double> scale = {},
                          const HeadsView<const std::uint8_t>* mask = nullptr);

}  // namespace flash_steps

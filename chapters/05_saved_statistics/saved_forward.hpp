// Chapter 05: the forward pass that keeps what the backward pass needs, on the CPU.
//
//   S   = scale * Q K^T       (Nq, Nk)  scores; only one (Br, Bc) tile exists at a time
//   P   = softmax_row(S)      (Nq, Nk)  likewise; but m and l, or LSE alone, rebuild any of it
//   O   = P V                 (Nq, d)   output
//   m   = rowmax(S)           (Nq)      over the visible keys, as l
//   l   = rowsum(exp(S - m))  (Nq)      from 1 to Nk
//   LSE = m + ln l            (Nq)      natural logarithm: exp(LSE) = rowsum(exp(S))
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// O = softmax(scale * Q K^T) V for one head, with its statistics; if causal, query i sees the
// keys j <= i + Nk - Nq.
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), m, l, LSE (Nq), T = float or double,
// 1 <= d <= 256, Nq and Nk may be 0. A row that sees no key, or only scores of -inf, has O = 0,
// m = -inf, l = 0, LSE = -inf. A row with NaN in a visible score has NaN in O, l and LSE, and
// its m says nothing: whether a row is empty is to be asked of l or LSE. O has the bits of
// causal_forward_cpu. Throws std::invalid_argument for shapes that do not fit, Br or Bc < 1, or
// a scale not finite in T.
template <class T>
void saved_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                       VectorOut<T> m, VectorOut<T> l, VectorOut<T> LSE, Tiling tile = {},
                       bool causal = false, std::optional<double> scale = {});

}  // namespace flash_steps

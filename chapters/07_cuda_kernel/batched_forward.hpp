// Chapter 07: the forward pass for a batch of heads, on the CPU.
//
//   O   = softmax(scale * Q K^T) V        [B, H, Nq, d]  head by head
//   LSE = m + ln l                        (B * H, Nq)    that of (b, h) in row b * H + h
//
// Q [B, H, Nq, d]; K, V [B, Hkv, Nk, d], shared by H / Hkv query heads each. Heads may lie in
// memory in any order: everything goes through the strides of a view.
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// T = float or double, 1 <= d <= 256, Hkv divides H; B, H, Nq and Nk may be 0. If causal, query
// i sees the keys j <= i + Nk - Nq. Each array has strides of its own, and they change no bit
// of the result. A row that sees no key, or only scores of -inf, has O = 0, LSE = -inf; a row
// with NaN in a visible score has NaN in both. All (head, query tile) run in parallel. Throws
// std::invalid_argument for shapes that do not fit, Br or Bc < 1, or a scale not finite in T.
template <class T>
void batched_forward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                         HeadsView<T> O, MatrixOut<T> LSE, Tiling tile = {},
                         bool causal = false, std::optional<double> scale = {});

}  // namespace flash_steps

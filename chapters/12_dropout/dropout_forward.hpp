// Chapter 12: attention with dropout on its weights, forward, on the CPU.
//
//   S   = scale * Q K^T        (Nq, Nk)  scores; only one (Br, Bc) tile exists at a time
//   P   = softmax_row(S)       (Nq, Nk)  likewise
//   Z   = mask / (1 - p)       (Nq, Nk)  likewise; mask is 1 with probability 1 - p, else 0
//   O   = (Z * P) V            (Nq, d)   output; Z * P entry by entry
//   LSE = ln rowsum(exp(S))    (Nq)      of all weights, dropped ones included
//
// for every query head of a batch; query head h attends to K/V head h / (H / Hkv).
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691), which has
// no dropout.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// O = (Z * softmax(scale * Q K^T)) V for a batch of heads; if causal, query i sees the keys
// j <= i + Nk - Nq.
//
// Q [B, H, Nq, d], K and V [B, Hkv, Nk, d] -> O [B, H, Nq, d] and LSE (B * H, Nq), that of head
// (b, h) in row b * H + h. T = float or double, 1 <= d <= 256, Hkv divides H; B, H, Nq and Nk
// may be 0. Strides are as HeadsView allows. mask [B, H, Nq, Nk], 0 = dropped, takes the place
// of the computed one; dropout.p is still the p of 1/(1-p).
//
// Edges:
// - p = 0 keeps everything, and gives the bits of attention without dropout.
// - A row that sees no key, or only scores of -inf, has O = 0 and LSE = -inf. A row whose
//   weights were all dropped has O = 0, and its LSE as without dropout.
// - A dropped key is still a visible one: NaN in its K makes the row NaN, NaN in its V column c
//   of the row's O. Keys that the row does not see never enter.
//
// Throws std::invalid_argument for shapes that do not fit, Br or Bc < 1, a scale not finite in
// T, or as require_dropout does.
template <class T>
void dropout_forward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                         HeadsView<T> O, MatrixOut<T> LSE, const Dropout& dropout,
                         Tiling tile = {}, bool causal = false,
                         std::optional<double> scale = {},
                         const HeadsView<const std::uint8_t>* mask = nullptr);

// The mask that dropout computes: kept [B, H, Nq, Nk], 1 = kept, 0 = dropped, keys that a
// causal row would not see included. Only to look at, or to compare with: nobody needs it.
// Throws std::invalid_argument as require_dropout does.
void dropout_mask_cpu(HeadsView<std::uint8_t> kept, const Dropout& dropout);

}  // namespace flash_steps

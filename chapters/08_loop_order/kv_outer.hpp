// Chapter 08: the keys outside, as in FlashAttention, on the CPU. Each K/V tile is loaded once,
// and meets all Q tiles; their O, m, l travel to the chip and back at every meeting.
//
//   for each K/V tile j                        (Bc, d)
//     for each Q tile i that sees it           (Br, d)
//
// [n] marks line n of Algorithm 1 in FlashAttention (Dao et al. 2022, arXiv:2205.14135).
#pragma once

#include <optional>

#include "chapters/02_io_counting/predict.hpp"
#include "chapters/08_loop_order/normalise.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// O = softmax(scale * Q K^T) V for one head, with m and l; if causal, query i sees the keys
// j <= i + Nk - Nq. Returns what it read and wrote: predict_loop_order(kv_outer, ...). Setting
// O, m, l to their start values is not counted.
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), m, l (Nq), T = float or double, 1 <= d <= 256, Nq
// and Nk may be 0. A row that sees no key, or only scores of -inf, has O = 0, m = -inf, l = 0.
// A row with NaN in a visible score has NaN in O and l, and its m says nothing. LSE = m + ln l
// is left to the caller. scale defaults to 1/sqrt(d). K/V tiles come one after another; the Q
// tiles that one meets run in parallel. Throws std::invalid_argument for shapes that do not
// fit, Br or Bc < 1, or a scale not finite in T.
template <class T>
Counts kv_outer_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O, VectorOut<T> m,
                    VectorOut<T> l, Tiling tile = {}, bool causal = false,
                    std::optional<double> scale = {},
                    Normalise normalise = Normalise::every_tile);

}  // namespace flash_steps

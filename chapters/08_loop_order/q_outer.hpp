// Chapter 08: the queries outside, as in FlashAttention-2, on the CPU. Each query tile is
// finished before the next: its O, m, l never leave the chip.
//
//   for each Q tile i                          (Br, d)
//     for each K/V tile j that it sees         (Bc, d)
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "chapters/02_io_counting/predict.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// O = softmax(scale * Q K^T) V for one head, with LSE; if causal, query i sees the keys
// j <= i + Nk - Nq. Returns what it read and wrote: predict_loop_order(q_outer, ...).
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), LSE (Nq), T = float or double, 1 <= d <= 256, Nq and
// Nk may be 0. A row that sees no key has O = 0, LSE = -inf. scale defaults to 1/sqrt(d). O has
// the bits of causal_forward_cpu. Query tiles run in parallel. Throws std::invalid_argument for
// shapes that do not fit, Br or Bc < 1, or a scale not finite in T.
template <class T>
Counts q_outer_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                   VectorOut<T> LSE, Tiling tile = {}, bool causal = false,
                   std::optional<double> scale = {});

}  // namespace flash_steps

// Chapter 04: the tiled forward pass with a causal mask, on the CPU: hidden tiles are skipped.
//
//   S = scale * Q K^T     (Nq, Nk)  scores; only one (Br, Bc) tile exists at a time
//   P = softmax_row(S)    (Nq, Nk)  likewise; 0 where j > i + Nk - Nq
//   O = P V               (Nq, d)   output
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"

namespace flash_steps {

// The walk of one query tile over the keys that it sees: the body of the outer loop. Qi (rows,
// d) are the rows of Q from q_start on; K, V (Nk, d); row q_start + r sees the keys j <=
// q_start + r + offset (mask_offset). Returns the state with O normalised; a row that sees no
// key has m = -inf, l = 0, O = 0.
//
// For a stretch of the keys from k on, pass that stretch as K and V, and offset - k.
template <class T>
TileState<T> causal_q_tile(MatrixIn<T> Qi, MatrixIn<T> K, MatrixIn<T> V, Index q_start,
                           Index Bc, Index offset, T scale, Visit visit = Visit::skip_hidden,
                           TileObserver<T>* observer = nullptr);

// O = softmax(scale * Q K^T) V for one head; if causal, query i sees the keys j <= i + Nk - Nq.
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), T = float or double, 1 <= d <= 256, Nq and Nk may be
// 0. A row that sees no key gets O = 0. scale defaults to 1/sqrt(d). Query tiles run in
// parallel, or in order on one thread with an observer. Both ways to visit give the same bits,
// and causal = false those of tiled_forward_cpu. Throws std::invalid_argument for shapes that
// do not fit, Br or Bc < 1, or a scale not finite in T.
template <class T>
void causal_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                        Tiling tile = {}, bool causal = true, std::optional<double> scale = {},
                        Visit visit = Visit::skip_hidden, TileObserver<T>* observer = nullptr);

}  // namespace flash_steps

// Chapter 02: attention as it is written down, with the scores in HBM, counted access by
// access.
//
//   S = scale * Q K^T     (Nq, Nk)  pass 1 writes it
//   P = softmax_row(S)    (Nq, Nk)  pass 2 reads S and writes P
//   O = P V               (Nq, d)   pass 3 reads P
//
// This is Algorithm 0 of FlashAttention (Dao et al. 2022, arXiv:2205.14135).
#pragma once

#include <optional>

#include "chapters/02_io_counting/predict.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// O = softmax(scale * Q K^T) V for one head, every query seeing every key. Returns what it read
// and wrote, which is predict_standard(Nq, Nk, d, tile).
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), T = float or double, 1 <= d <= 256, Nq and Nk may be
// 0 (no keys: O = 0, likewise for a row whose scores are all -inf). scale defaults to
// 1/sqrt(d). On chip are a Q tile (Br, d), a tile (Bc, d) of K or V and their scores, or a row
// of S. One thread, in order. Throws std::invalid_argument for shapes that do not fit, Br or Bc
// < 1, or a scale not finite in T.
template <class T>
Counts standard_attention_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                              Tiling tile = {}, std::optional<double> scale = {});

}  // namespace flash_steps

// Chapter 02: the tiled orders as walks, which load and store what attention would and compute
// next to nothing in between.
//
// So that every load is used, a walk touches each pair of a query and a key, and acts as if all
// scores were 0:
//
//   O_ic = sum_j (Q_ic + K_jc + V_jc),   m = 0,   l = Nk,   LSE = ln Nk
//
// The real thing takes the same steps: chapter 03 (q_outer) and chapter 08 (kv_outer) must meet
// the same predictions.
#pragma once

#include "chapters/02_io_counting/predict.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// All walks: Q (Nq, d), K and V (Nk, d) -> O (Nq, d), 1 <= d <= 256, Nq and Nk may be 0. One
// thread, in order. A vector of statistics may be empty: then that walk moves none. They throw
// std::invalid_argument for shapes that do not fit, and for Br or Bc < 1.

// One Q tile stays on chip while all K/V tiles pass. LSE (Nq) or (0). Returns what it read and
// wrote: predict_q_outer(Nq, Nk, d, tile).
Counts walk_q_outer_cpu(MatrixIn<float> Q, MatrixIn<float> K, MatrixIn<float> V,
                        MatrixOut<float> O, VectorOut<float> LSE, Tiling tile = {});

// One K/V tile stays on chip while all Q tiles pass; O, m, l travel with them. m and l (Nq), or
// both (0). On entry O = 0, m = -inf, l = 0: that is the caller's, and not counted. Returns
// what it read and wrote: predict_kv_outer(Nq, Nk, d, tile).
Counts walk_kv_outer_cpu(MatrixIn<float> Q, MatrixIn<float> K, MatrixIn<float> V,
                         MatrixOut<float> O, VectorOut<float> m, VectorOut<float> l,
                         Tiling tile = {});

}  // namespace flash_steps

// Chapter 06: the backward pass, which rebuilds the weights tile by tile, on the CPU.
//
//   D  = rowsum(dO * O)          (Nq)       entry by entry; delta = D - dLSE
//   P  = exp(S - m) / l          (Nq, Nk)   rebuilt; only one (Br, Bc) tile exists at a time
//   dP = dO V^T                  (Nq, Nk)   likewise
//   dS = P * (dP - D + dLSE)     (Nq, Nk)   likewise; entry by entry
//   dQ = scale * dS K            (Nq, d)
//   dK = scale * dS^T Q          (Nk, d)
//   dV = P^T dO                  (Nk, d)
//
// [n] marks line n of Algorithm 2 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// The gradients of softmax(scale * Q K^T) V for one head; if causal, query i sees the keys
// j <= i + Nk - Nq.
//
// Q, O, dO (Nq, d), K, V (Nk, d), m, l (Nq), with O, m, l as saved_forward_cpu gives them for
// the same Q, K, V, mask and scale; dO is the gradient of the loss for O, dLSE (Nq) that for
// LSE (null: 0). -> dQ (Nq, d), dK, dV (Nk, d), and delta (Nq) = rowsum(dO * O) - dLSE, which
// says nothing for rows that see no key. All are overwritten. T = float or double, 1 <= d <=
// 256, Nq and Nk may be 0 (then the gradients that there are are 0). Beside its arguments it
// keeps two (Br, Bc) tiles a thread. Same bits for any number of threads.
//
// Edges:
// - A row with l = 0 has dQ = 0 and adds nothing to dK and dV, whatever its Q, dO, dLSE hold. A
//   key that no row sees has dK = dV = 0.
// - Keys that a row does not see never enter its gradients, nor it theirs.
// - NaN in a visible score (in Q_i, or in a visible K_j) makes l of the row NaN: dQ of the row
//   and dK, dV of all keys that it sees are NaN. NaN in V_j or in dO_i goes through D: dQ of
//   the row and dK of all keys that it sees; of dV it reaches column c of those keys if dO_ic
//   is NaN, and nothing if V_j is. NaN in dLSE_i reaches the same as in D.
// - A visible K_j of infinite size has weight 0, and 0 times infinity makes dQ_i NaN.
// - With scale 0, dQ = dK = 0.
//
// Throws std::invalid_argument for shapes that do not fit, Br or Bc < 1, or a scale not finite
// in T.
template <class T>
void backward_recompute_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixIn<T> O,
                            VectorIn<T> m, VectorIn<T> l, MatrixIn<T> dO, VectorOut<T> delta,
                            MatrixOut<T> dQ, MatrixOut<T> dK, MatrixOut<T> dV, Tiling tile = {},
                            bool causal = false, std::optional<double> scale = {},
                            const Vector<T>* dLSE = nullptr);

// delta = rowsum(dO * O) - dLSE: dO, O (Nq, d), dLSE (Nq) or null -> delta (Nq).
template <class T>
void compute_delta(MatrixIn<T> dO, MatrixIn<T> O, const Vector<T>* dLSE, VectorOut<T> delta);

// The walk over all visible pairs of tiles. Adds to dQ, dK and dV, and checks nothing; query i
// sees the keys j <= i + offset (mask_offset).
template <class T>
void add_gradients(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, VectorIn<T> m, VectorIn<T> l,
                   MatrixIn<T> dO, VectorIn<T> delta, MatrixOut<T> dQ, MatrixOut<T> dK,
                   MatrixOut<T> dV, Tiling tile, Index offset, T scale);

}  // namespace flash_steps

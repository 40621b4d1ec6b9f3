// The steps of the backward pass on one pair of tiles, on the CPU. Later chapters walk over
// tiles in other ways, and call the same steps.
//
//   P  = exp(S - m) / l          (rows, cols)  rebuilt; S = scale * Qi Kj^T
//   dP = dOi Vj^T                (rows, cols)
//   dS = P * (dP - delta)        (rows, cols)  entry by entry
//   dVj += P^T dOi,   dQi += scale * dS Kj,   dKj += scale * dS^T Qi
//
// [n] marks line n of Algorithm 2 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <span>
#include <vector>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// What exists of the (Nq, Nk) matrices at a time. Entries of keys that a row does not use hold
// anything, and are never read.
template <class T>
struct BackwardTile {
  Matrix<T> P;   // (rows, cols)
  Matrix<T> dS;  // (rows, cols)  dP before compute_dS
};

// In all of them: Qi, dOi (rows, d), Kj, Vj (cols, d), m, l, delta (rows). visible[r], from 0
// to cols, is how many leading keys of the tile row r uses; it must be 0 where l is 0. The
// others enter no sum, and neither they nor the row's dO for them need be numbers.

// `visible` of the rows from q_start on, l being theirs: of the `cols` keys from k_start on,
// query i uses those with j <= i + offset, and none if its l is 0.
template <class T>
std::vector<Index> count_used_keys(VectorIn<T> l, Index q_start, Index k_start, Index cols,
                                   Index offset);

// [10] [11] tile.P from the saved statistics. With m = LSE and l = 1, where there are keys,
// those are the weights from LSE alone.
template <class T>
void rebuild_P(BackwardTile<T>& tile, MatrixIn<T> Qi, MatrixIn<T> Kj, VectorIn<T> m,
               VectorIn<T> l, T scale, std::span<const Index> visible);

// [13] tile.dS = dP
template <class T>
void compute_dP(BackwardTile<T>& tile, MatrixIn<T> dOi, MatrixIn<T> Vj);

// [14] tile.dS = dS, from dP there and P
template <class T>
void compute_dS(BackwardTile<T>& tile, VectorIn<T> delta, std::span<const Index> visible);

// [12] dVj (cols, d) += P^T dOi
template <class T>
void add_dV(MatrixOut<T> dVj, const BackwardTile<T>& tile, MatrixIn<T> dOi,
            std::span<const Index> visible);

// [15] dQi (rows, d) += scale * dS Kj
template <class T>
void add_dQ(MatrixOut<T> dQi, const BackwardTile<T>& tile, MatrixIn<T> Kj, T scale,
            std::span<const Index> visible);

// [16] dKj (cols, d) += scale * dS^T Qi
template <class T>
void add_dK(MatrixOut<T> dKj, const BackwardTile<T>& tile, MatrixIn<T> Qi, T scale,
            std::span<const Index> visible);

}  // namespace flash_steps

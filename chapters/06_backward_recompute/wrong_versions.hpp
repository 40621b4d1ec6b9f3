// Wrong versions of chapter 06, which its executable shows and its tests pin down. In float64,
// one pair of tiles after another, every query seeing every key unless it says otherwise.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/tensor/matrix.hpp"

namespace flash_steps::wrong {

// The notes' listing (docs/errata.md, E11): the row sum in the gradient of softmax over the
// keys of one tile instead of all. Right if one tile holds all keys. Q, dO (Nq, d), K, V (Nk,
// d), m, l (Nq) -> dS (Nq, Nk).
inline Matrix<double> dS_with_tile_sums(const Matrix<double>& Q, const Matrix<double>& K,
                                        const Matrix<double>& V, const Vector<double>& m,
                                        const Vector<double>& l, const Matrix<double>& dO,
                                        Index Bc, double scale) {
  Matrix<double> dS(Q.rows(), K.rows());
  for (Index k_start = 0; k_start < K.rows(); k_start += Bc) {
    const Index cols = std::min(Bc, K.rows() - k_start);
    for (Index i = 0; i < Q.rows(); ++i) {
      double sum = 0;
      const auto P = [&](Index j) {
        return std::exp(scale * Q.row(i).dot(K.row(j)) - m[i]) / l[i];
      };
      const auto dP = [&](Index j) { return dO.row(i).dot(V.row(j)); };
      for (Index j = k_start; j < k_start + cols; ++j) sum += P(j) * dP(j);
      for (Index j = k_start; j < k_start + cols; ++j) dS(i, j) = P(j) * (dP(j) - sum);
    }
  }
  return dS;
}

// The weight of any pair from m and l, hidden pairs too (E33): a score that the row did not see
// may be larger than its m. In T, since it is float32 that overflows first.
template <class T>
T weight_without_mask(T score, T m, T l) {
  return std::exp(score - m) / l;
}

}  // namespace flash_steps::wrong

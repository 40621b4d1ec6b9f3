// Wrong versions of chapter 08, which its executable shows and its tests pin down.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/tensor/matrix.hpp"

namespace flash_steps::wrong {

// What some keys leave of a row: maximum, sum of exp(score - m), sum of exp(score - m) * value.
struct Part {
  double m, l, O;
};

// Parts that add themselves to a row with three atomics, a maximum and two sums, in any order:
// each l and O stays relative to its own maximum (docs/errata.md, E39).
inline double merge_with_atomics(const std::vector<Part>& parts) {
  Part row{-kInf<double>, 0, 0};
  for (const Part& part : parts) {
    row.m = std::max(row.m, part.m);  // atomicMax
    row.l += part.l;                  // atomicAdd
    row.O += part.O;                  // atomicAdd
  }
  return row.O / row.l;
}

// How the update that normalises at every tile has been printed. The factor on the old O is
// (l_old / l_new) e^(m_old - m_new).
enum class OldFactor {
  right,
  inverted,             // (l_old / l_new)^-1: as FlashAttention-2 recalls it
  no_change_of_maximum  // l_old / l_new
};

// One row, normalised after each tile of Bc keys; keys are their own scores.
inline double normalise_every_tile(const std::vector<double>& scores,
                                   const std::vector<double>& values, std::size_t Bc,
                                   OldFactor factor) {
  double m = -kInf<double>, l = 0, O = 0;
  for (std::size_t k_start = 0; k_start < scores.size(); k_start += Bc) {
    const std::size_t k_end = std::min(scores.size(), k_start + Bc);
    double m_new = m, l_part = 0, O_part = 0;
    for (std::size_t j = k_start; j < k_end; ++j) m_new = std::max(m_new, scores[j]);
    for (std::size_t j = k_start; j < k_end; ++j) {
      l_part += std::exp(scores[j] - m_new);
      O_part += std::exp(scores[j] - m_new) * values[j];
    }
    const double alpha = std::exp(m - m_new), l_new = alpha * l + l_part;
    double old = l == 0 ? 0 : l / l_new * alpha;
    if (factor == OldFactor::inverted) old = l == 0 ? 0 : l_new / l;
    if (factor == OldFactor::no_change_of_maximum) old = l / l_new;
    O = old * O + O_part / l_new;
    l = l_new;
    m = m_new;
  }
  return O;
}

// The notes' listing of "version 2", with K and V outside: its loops load tiles, and that is
// all they do (E38). Returns what it returns, O / l of the start values.
inline Matrix<double> notes_version_2(Index Nq, Index Nk, Index d, Index Br, Index Bc) {
  const Matrix<double> O = Matrix<double>::Zero(Nq, d);
  const Vector<double> l = Vector<double>::Zero(Nq);
  for (Index k_start = 0; k_start < Nk; k_start += Bc) {
    for (Index q_start = 0; q_start < Nq; q_start += Br) {
    }
  }
  return O.array().colwise() / l.array();
}

}  // namespace flash_steps::wrong

// Wrong versions of chapter 12, which its executable shows and its tests pin down. In float64,
// so that rounding is not to blame.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace flash_steps::wrong {

// One query: its scores and one channel of the values; kept[j] is 0 or 1.
struct DropoutRow {
  std::vector<double> scores, values, kept;
  double p;
};

// exp(score - m), not yet divided by l, after dropout.
inline std::vector<double> dropped_weights(const DropoutRow& row) {
  const double m = *std::max_element(row.scores.begin(), row.scores.end());
  std::vector<double> P;
  for (std::size_t j = 0; j < row.scores.size(); ++j) {
    P.push_back(std::exp(row.scores[j] - m) * row.kept[j] / (1 - row.p));
  }
  return P;
}

// The mask first, then l += rowsum(P) (docs/errata.md, E21): the kept weights are made to sum
// to 1 again, 1/(1-p) cancels, and a row that lost all its weights is 0/0.
inline double dropout_before_the_sum(const DropoutRow& row) {
  const std::vector<double> P = dropped_weights(row);
  double l = 0, O = 0;
  for (std::size_t j = 0; j < P.size(); ++j) {
    l += P[j];  // wrong: of the dropped weights
    O += P[j] * row.values[j];
  }
  return O / l;
}

// dS for dO = 1, with the dropped weights where the softmax's own belong. l and D are right.
inline std::vector<double> dS_from_dropped_weights(const DropoutRow& row) {
  const std::vector<double> ZP = dropped_weights(row);
  const double m = *std::max_element(row.scores.begin(), row.scores.end());
  double l = 0, D = 0;
  for (const double score : row.scores) l += std::exp(score - m);
  for (std::size_t j = 0; j < ZP.size(); ++j) D += ZP[j] / l * row.values[j];
  std::vector<double> dS;
  for (std::size_t j = 0; j < ZP.size(); ++j) {
    const double dP = row.kept[j] / (1 - row.p) * row.values[j];
    dS.push_back(ZP[j] / l * (dP - D));  // wrong: P, not Z * P
  }
  return dS;
}

}  // namespace flash_steps::wrong

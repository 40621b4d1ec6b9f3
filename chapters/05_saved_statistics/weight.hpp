// What the saved statistics are for: the weight of any key, from its score alone.
#pragma once

#include <cmath>
#include <limits>

namespace flash_steps {

// P_ij from the score S_ij of a visible key and the m and l of its row: to a few units in the
// last place, however large the scores are.
template <class T>
T weight_from_m_l(T score, T m, T l) {
  // [begin 05.weight-from-m-l]
  if (l == T(0)) return T(0);  // all visible scores are -inf: (-inf) - (-inf) would be NaN
  return std::exp(score - m) / l;
  // [end]
}

// P_ij from the score of a visible key and LSE alone. LSE has been rounded like any number of
// its size: the relative error is half the distance between two numbers of T at LSE.
template <class T>
T weight_from_lse(T score, T LSE) {
  // [begin 05.weight-from-lse]
  if (LSE == -std::numeric_limits<T>::infinity()) return T(0);  // likewise
  return std::exp(score - LSE);
  // [end]
}

}  // namespace flash_steps

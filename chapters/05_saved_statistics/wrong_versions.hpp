// Wrong versions of chapter 05, which its executable shows and its tests pin down.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flash_steps::wrong {

// What a row ends with.
struct Row {
  double m, l, O;
};

// One row, a key at a time (Bc = 1), with m, l and O kept in T, as code does that creates them
// "like Q" (docs/errata.md, E27). Scores and values are exact in T; only the sums are not. With
// T = float it is right, with a 16-bit type the sums stop growing.
template <class T>
Row accumulate_in(const std::vector<float>& scores, const std::vector<float>& values) {
  T m = static_cast<T>(-std::numeric_limits<float>::infinity()), l(0), O(0);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const T score(scores[j]), value(values[j]);
    const T m_new = std::max(m, score);
    const T alpha(std::exp(static_cast<float>(m) - static_cast<float>(m_new)));
    const T p(std::exp(static_cast<float>(score) - static_cast<float>(m_new)));
    l = alpha * l + p;
    O = alpha * O + p * value;
    m = m_new;
  }
  return {static_cast<double>(m), static_cast<double>(l),
          static_cast<double>(O) / static_cast<double>(l)};
}

}  // namespace flash_steps::wrong

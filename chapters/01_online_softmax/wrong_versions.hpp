// Wrong versions of chapter 01, which its executable shows and its tests pin down: what they
// return is wrong in the way that README.md says. In float64, so that rounding is not to blame.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

namespace flash_steps::wrong {

// Two faults: the old sum is added to instead of rescaled (docs/errata.md, E1), and the weights
// are stored while the maximum still grows (E2).
inline std::vector<double> softmax_l_added(const std::vector<double>& x) {
  double m = -std::numeric_limits<double>::infinity(), l = 0;
  std::vector<double> p(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > m) {
      l += std::exp(m - x[i]);  // wrong: *=
      m = x[i];
    }
    l += std::exp(x[i] - m);
    p[i] = std::exp(x[i] - m);  // wrong: m is not final
  }
  for (double& weight : p) weight /= l;
  return p;
}

// E2 alone: l is right now, but each weight is relative to the maximum of its time.
inline std::vector<double> softmax_stored_early(const std::vector<double>& x) {
  double m = -std::numeric_limits<double>::infinity(), l = 0;
  std::vector<double> p(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > m) {
      l *= std::exp(m - x[i]);
      m = x[i];
    }
    l += std::exp(x[i] - m);
    p[i] = std::exp(x[i] - m);  // wrong: m is not final
  }
  for (double& weight : p) weight /= l;
  return p;
}

// E25: nothing keeps (-inf) - (-inf) out of the exponent.
inline std::vector<double> softmax_unguarded(const std::vector<double>& x) {
  double m = -std::numeric_limits<double>::infinity(), l = 0;
  std::vector<double> p(x.size());
  for (const double value : x) {
    if (value > m) {
      l *= std::exp(m - value);
      m = value;
    }
    l += std::exp(value - m);  // wrong: NaN while value and m are both -inf
  }
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = std::exp(x[i] - m) / l;
  return p;
}

}  // namespace flash_steps::wrong

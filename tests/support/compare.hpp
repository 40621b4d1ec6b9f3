// The one comparison of numbers: element by element, and NaN never passes by accident.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/tensor/matrix.hpp"

namespace flash_steps::test {

// |actual - expected| <= absolute + relative * max(1, max |expected|), the maximum over all
// finite elements of the expected matrix.
struct Budget {
  double absolute, relative;
};
inline constexpr Budget kFloat32{1e-6, 1e-5};          // float32 results against float64
inline constexpr Budget kFloat32Gradient{1e-5, 1e-4};  // gradients, and P rebuilt from LSE
inline constexpr Budget kFloat64{1e-13, 1e-12};

// Equal infinities match; NaN matches only where `nan_expected` says that NaN is right.
inline bool matches(double actual, double expected, double tolerance,
                    bool nan_expected = false) {
  if (std::isnan(expected)) return nan_expected && std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= tolerance;
}

// Fails unless every element matches, and shows the first that does not. Shapes must agree.
template <class A, class B>
void check_close(const A& actual, const B& expected, Budget budget, bool nan_expected = false) {
  REQUIRE(actual.rows() == expected.rows());
  REQUIRE(actual.cols() == expected.cols());
  double largest = 1.0;
  for (Index r = 0; r < expected.rows(); ++r) {
    for (Index c = 0; c < expected.cols(); ++c) {
      const double e = static_cast<double>(expected(r, c));
      if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    }
  }
  const double tolerance = budget.absolute + budget.relative * largest;
  for (Index r = 0; r < expected.rows(); ++r) {
    for (Index c = 0; c < expected.cols(); ++c) {
      const double a = static_cast<double>(actual(r, c)),
                   e = static_cast<double>(expected(r, c));
      if (matches(a, e, tolerance, nan_expected)) continue;
      CAPTURE(r);
      CAPTURE(c);
      CAPTURE(a);
      CAPTURE(e);
      CAPTURE(tolerance);
      FAIL_CHECK("the first element that differs");
      return;
    }
  }
  CHECK(actual.size() ==
        expected.size());  // so that an empty comparison asserts something, too
}

// Bit for bit, except that it does not look at which NaN it is.
template <class A, class B>
bool same_bits(const A& a, const B& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (Index r = 0; r < a.rows(); ++r) {
    for (Index c = 0; c < a.cols(); ++c) {
      if (std::isnan(a(r, c)) && std::isnan(b(r, c))) continue;
      if (!(a(r, c) == b(r, c)) || std::signbit(a(r, c)) != std::signbit(b(r, c))) return false;
    }
  }
  return true;
}

}  // namespace flash_steps::test

// The comparison that all other tests rely on: what must not match does not.
#include "tests/support/compare.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace flash_steps;
using namespace flash_steps::test;

TEST_CASE("cpu: comparison K22 NaN and infinity never pass by accident (cubecl 1070)") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = kInf<double>;
  const double huge = std::numeric_limits<double>::max();
  CHECK_FALSE(matches(nan, 0, huge));
  CHECK_FALSE(matches(0, nan, huge));
  CHECK_FALSE(matches(nan, nan, huge));
  CHECK(matches(nan, nan, 0, true));
  CHECK_FALSE(matches(0, nan, huge, true));  // NaN is not just allowed but expected
  CHECK_FALSE(matches(nan, 0, huge, true));
  CHECK(matches(-inf, -inf, 0));
  CHECK(matches(inf, inf, 0));
  CHECK_FALSE(matches(inf, -inf, huge));
  CHECK_FALSE(matches(huge, inf, huge));
  CHECK_FALSE(matches(inf, huge, huge));
  CHECK_FALSE(matches(1, 1, nan));  // a tolerance of NaN tolerates nothing
}

TEST_CASE("cpu: comparison of values takes the tolerance and no more") {
  CHECK(matches(1.5, 1, 0.5));
  CHECK_FALSE(matches(1.5, 1, 0.49));
  CHECK_FALSE(matches(0.5, 1, 0.49));
}

TEST_CASE("cpu: comparison K19 the right numbers in other places fail (flash-attention 2553)") {
  const Matrix<double> right{{1, 2}, {3, 4}}, swapped{{1, 3}, {2, 4}};
  CHECK(swapped.norm() == right.norm());  // which is all that some tests look at
  CHECK(swapped.sum() == right.sum());
  CHECK_FALSE(same_bits(swapped, right));
  CHECK_FALSE(matches(swapped(0, 1), right(0, 1), 0.5));
}

TEST_CASE("cpu: comparison looks at every element" * doctest::should_fail()) {
  const Matrix<double> right{{1, 2}, {3, 4}}, swapped{{1, 3}, {2, 4}};
  check_close(swapped, right, kFloat32);
}

TEST_CASE("cpu: comparison of bits tells zeros apart and takes any NaN for NaN") {
  const Matrix<double> zero{{0.0}}, minus_zero{{-0.0}}, nan{{std::nan("1")}},
      other_nan{{std::nan("2")}};
  CHECK(same_bits(zero, zero));
  CHECK_FALSE(same_bits(zero, minus_zero));
  CHECK(same_bits(nan, other_nan));
  CHECK_FALSE(same_bits(nan, zero));
  CHECK_FALSE(same_bits(zero, Matrix<double>(Matrix<double>::Zero(1, 2))));
}

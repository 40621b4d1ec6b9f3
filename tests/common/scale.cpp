#include "common/tensor/scale.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"
#include "tests/support/calls.hpp"

namespace flash_steps {

namespace {

template <class T>
std::string scale_error(std::optional<double> scale, std::int64_t d) {
  return test::message_of([&] { resolve_scale<T>(scale, d); });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("cpu: scale defaults to one over the root of d rounded once") {
  CHECK(resolve_scale<float>(std::nullopt, 64) == 0.125f);
  CHECK(resolve_scale<double>(std::nullopt, 64) == 0.125);
  CHECK(resolve_scale<double>(std::nullopt, 1) == 1.0);
  for (std::int64_t d = 1; d <= 256; ++d) {
    CAPTURE(d);
    const double exact = 1.0 / std::sqrt(static_cast<double>(d));
    CHECK(resolve_scale<double>(std::nullopt, d) == exact);
    CHECK(resolve_scale<float>(std::nullopt, d) == static_cast<float>(exact));
  }
  // float arithmetic throughout rounds twice and is one unit off for a fifth of all d
  CHECK(resolve_scale<float>(std::nullopt, 96) != 1.0f / std::sqrt(96.0f));
}

TEST_CASE("cpu: scale given is used as it is") {
  for (const double scale : {0.0, -1.0, 0.1, 1e-300, -3.25, 3e38}) {
    CAPTURE(scale);
    CHECK(resolve_scale<double>(scale, 64) == scale);
    CHECK(resolve_scale<float>(scale, 64) == static_cast<float>(scale));
  }
  CHECK(std::signbit(resolve_scale<float>(-0.0, 64)));
  CHECK(resolve_scale<double>(1e300, 64) == 1e300);
  constexpr float largest = std::numeric_limits<float>::max();
  CHECK(resolve_scale<float>(largest, 64) == largest);
  CHECK(resolve_scale<float>(-largest, 64) == -largest);
}

TEST_CASE("cpu: scale must be finite in the type of the arithmetic") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(contains(scale_error<float>(1e300, 64), "finite in float32, found 1e+300"));
  CHECK(contains(scale_error<float>(-3.5e38, 64), "found -3.5e+38"));
  for (const double scale : {infinity, -infinity, std::nan("")}) {
    CAPTURE(scale);
    CHECK(contains(scale_error<float>(scale, 64), "float32"));
    CHECK(contains(scale_error<double>(scale, 64), "float64"));
  }
}

TEST_CASE("cpu: scale needs a head dimension of at least 1") {
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{-8}}) {
    CAPTURE(d);
    CHECK(contains(scale_error<float>(std::nullopt, d), "found " + std::to_string(d)));
    CHECK(contains(scale_error<double>(1.0, d), "head dimension"));
  }
}

TEST_CASE("cpu: ceil_div is the number of tiles") {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  static_assert(ceil_div(0, 4) == 0 && ceil_div(1, 4) == 1 && ceil_div(4, 4) == 1);
  static_assert(ceil_div(5, 4) == 2 && ceil_div(5, 1) == 5 && ceil_div(3, 100) == 1);
  static_assert(ceil_div(-5, 4) == -1 && ceil_div(-4, 4) == -1 && ceil_div(-3, 4) == 0);
  static_assert(ceil_div(largest, 2) == largest / 2 + 1 && ceil_div(largest, largest) == 1);

  for (std::int64_t a = -9; a <= 9; ++a) {
    for (std::int64_t b = 1; b <= 5; ++b) {
      CAPTURE(a);
      CAPTURE(b);
      CHECK(ceil_div(a, b) * b >= a);
      CHECK((ceil_div(a, b) - 1) * b < a);
    }
  }
}

TEST_CASE("cpu: require throws its message and only when it must") {
  CHECK_NOTHROW(require(true, "unused"));
  CHECK_NOTHROW(require(true, std::string("unused")));
  CHECK_THROWS_WITH_AS(require(false, "Br must be positive"), "Br must be positive",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(require(false, std::string("d = ") + "0"), "d = 0",
                       std::invalid_argument);
}

}  // namespace flash_steps

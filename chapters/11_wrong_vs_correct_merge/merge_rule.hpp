// The four rules of chapter 11, and what both twins ask of their arguments. No Eigen: nvcc
// reads this file too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>

#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

// What the sums of a running merge are relative to, and what happens to the old ones when a new
// part comes.
enum class MergeRule {
  correct,     // the largest maximum so far; the old sums are rescaled to it
  stale_max,   // the maximum of the first part, for good: exact until exp overflows
  no_rescale,  // the largest maximum, but the old sums stay as they are: silently wrong
  fixed_max,   // a number chosen beforehand: exact unless exp overflows or underflows
};

// Whether nothing has been merged yet, or only empty parts. It takes l and m: a fixed maximum
// that is far too large leaves l = 0 too, but after parts that did have something.
template <class T>
constexpr bool nothing_merged(T m, T l) {
  // [begin 11.nothing-merged]
  return l == T(0) && m == -std::numeric_limits<T>::infinity();
  // [end]
}

// A finished result, o divided by l and its LSE, is the part (m, l, o) = (LSE, 1, o): returns
// that l, or 0 for LSE = -inf, so that the part is empty.
template <class T>
constexpr T l_of_finished(T LSE) {
  // [begin 11.finished]
  return LSE == -std::numeric_limits<T>::infinity() ? T(0) : T(1);
  // [end]
}

// The fixed maximum in arithmetic of type T. Throws std::invalid_argument unless finite there.
template <class T>
T resolve_fixed_max(double value) {
  if (!(std::abs(value) <= static_cast<double>(std::numeric_limits<T>::max()))) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    const std::string type = std::is_same_v<T, float> ? "float32" : "float64";
    require(false, "the fixed maximum must be finite in " + type + ", found " + text);
  }
  return static_cast<T>(value);
}

// m and l (T), o (T, d), O (d) with 1 <= d <= 256; T may be 0. Throws std::invalid_argument
// naming the one that does not fit.
inline void require_part_shapes(std::int64_t m, std::int64_t l, Shape o, std::int64_t O) {
  if (o.cols < 1 || o.cols > 256) {
    require(false,
            "the head dimension d must be from 1 to 256, found " + std::to_string(o.cols));
  }
  const auto check = [](const char* name, std::int64_t size, std::int64_t expected) {
    if (size == expected) return;
    require(false, std::string(name) + " must be [" + std::to_string(expected) + "], found [" +
                       std::to_string(size) + "]");
  };
  check("m", m, o.rows);
  check("l", l, o.rows);
  check("O", O, o.cols);
}

// x and p (N), in blocks of Bc scores. Throws std::invalid_argument.
inline void require_score_sizes(std::int64_t x, std::int64_t p, std::int64_t Bc) {
  if (p != x) {
    require(false,
            "p must be as long as x, " + std::to_string(x) + ", found " + std::to_string(p));
  }
  if (Bc < 1) require(false, "Bc must be at least 1, found " + std::to_string(Bc));
}

}  // namespace flash_steps

// The factor on the scores, S = scale * Q K^T. No Eigen: nvcc reads this file too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace flash_steps {

// The scale to use in arithmetic of type T (float or double), for head dimension d.
//
// Without a value: 1 / sqrt(d), computed in double and rounded once. Here d is the true head
// dimension, not one padded to a tile. A given value is used as it is, zero and negative ones
// included: "no scale given" is std::nullopt, never a magic 0.
// Throws std::invalid_argument if d < 1, or if the value is NaN or beyond T's finite range.
template <class T>
T resolve_scale(std::optional<double> scale, std::int64_t d) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  if (d < 1) {
    throw std::invalid_argument("the head dimension d must be at least 1, found " +
                                std::to_string(d));
  }
  if (!scale) return static_cast<T>(1.0 / std::sqrt(static_cast<double>(d)));

  // !(x <= max) rather than x > max, so that NaN is refused too
  if (!(std::abs(*scale) <= static_cast<double>(std::numeric_limits<T>::max()))) {
    char value[32];  // of a fixed size: %g, for std::to_string(1e300) has 308 characters
    std::snprintf(value, sizeof value, "%.9g", *scale);
    const std::string type = std::is_same_v<T, float> ? "float32" : "float64";
    throw std::invalid_argument("the scale must be finite in " + type + ", found " + value);
  }
  return static_cast<T>(*scale);
}

}  // namespace flash_steps

// The number of elements of a shape, without overflow. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace flash_steps {

// The product of the sizes (1 for none: a scalar), or std::nullopt if a size is negative or the
// product of the sizes other than 0 does not fit in 63 bits. Zeros are left out of that test so
// that strides, which are products of some of the sizes, fit whenever a count is returned.
constexpr std::optional<std::int64_t> element_count(std::span<const std::int64_t> sizes) {
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    if (size > std::numeric_limits<std::int64_t>::max() / product) return std::nullopt;
    product *= size;
  }
  return empty ? 0 : product;
}

}  // namespace flash_steps

// Small matrices as cases write them down.
#pragma once

#include <vector>

#include "common/tensor/matrix.hpp"

namespace flash_steps::test {

using Floats = Matrix<float>;

// (N, 1): inputs in float32, and what is expected in float64.
inline Floats column(const std::vector<float>& values) {
  return Eigen::Map<const Floats>(values.data(), static_cast<Index>(values.size()), 1);
}
inline Matrix<double> doubles(const std::vector<double>& values) {
  return Eigen::Map<const Matrix<double>>(values.data(), static_cast<Index>(values.size()), 1);
}

// (N)
inline Vector<float> vector(const std::vector<float>& values) {
  return Eigen::Map<const Vector<float>>(values.data(), static_cast<Index>(values.size()));
}

}  // namespace flash_steps::test

// The shapes that every attention function asks for. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {

struct Shape {
  std::int64_t rows, cols;
  bool operator==(const Shape&) const = default;
};

// The shape of anything with rows() and cols(): Eigen's matrices and device matrices.
template <class M>
Shape shape_of(const M& matrix) {
  return {matrix.rows(), matrix.cols()};
}

inline void require_shape(const char* name, Shape found, Shape expected) {
  if (found == expected) return;
  const auto text = [](Shape s) {
    return "[" + std::to_string(s.rows) + ", " + std::to_string(s.cols) + "]";
  };
  require(false, std::string(name) + " must be " + text(expected) + ", found " + text(found));
}

// Q (Nq, d), K and V (Nk, d), O (Nq, d) with 1 <= d <= 256; Nq and Nk may be 0. Throws
// std::invalid_argument naming the matrix that does not fit.
inline void require_attention_shapes(Shape Q, Shape K, Shape V, Shape O) {
  const std::int64_t d = Q.cols;
  if (d < 1 || d > 256) {
    require(false, "the head dimension d must be from 1 to 256, found " + std::to_string(d));
  }
  require_shape("K", K, {K.rows, d});
  require_shape("V", V, {K.rows, d});
  require_shape("O", O, {Q.rows, d});
}

}  // namespace flash_steps

// From arrays in files to Eigen and back. Copies in both directions.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tensor/matrix.hpp"
#include "common/tensor/npy.hpp"

namespace flash_steps {

// The elements of an array whose dtype must be T and whose rank must be as given; axes, such as
// "[N, d]", says that rank in the error. Throws NpyError, beginning with name.
template <class T>
const std::vector<T>& checked_data(const NpyArray& array, std::size_t rank, const char* axes,
                                   const std::string& name) {
  const auto* data = std::get_if<std::vector<T>>(&array.data);
  if (data == nullptr) {
    throw NpyError(name + ": expected dtype " + dtype_name<T>() + ", found " +
                   dtype_name(array));
  }
  if (array.shape.size() != rank) {
    throw NpyError(name + ": expected a shape " + axes + ", found " + shape_text(array.shape));
  }
  check_consistent(array);
  return *data;
}

// An array [N, d] of dtype T (float, double, std::int32_t, ...) as a matrix (N, d). Nothing is
// converted or reshaped: another dtype or rank is an NpyError that begins with name.
template <class T>
Matrix<T> to_matrix(const NpyArray& array, const std::string& name) {
  const std::vector<T>& data = checked_data<T>(array, 2, "[N, d]", name);
  return Eigen::Map<const Matrix<T>>(data.data(), array.shape[0], array.shape[1]);
}

// An array [N] of dtype T as a vector (N). Errors as above.
template <class T>
Vector<T> to_vector(const NpyArray& array, const std::string& name) {
  const std::vector<T>& data = checked_data<T>(array, 1, "[N]", name);
  return Eigen::Map<const Vector<T>>(data.data(), array.shape[0]);
}

// A matrix, block or expression (N, d) as an array [N, d]; a type that is a vector at compile
// time (Vector, Q.row(r), Q.col(c)) as an array [N]. The element type is the dtype.
template <class Derived>
NpyArray to_npy(const Eigen::DenseBase<Derived>& values) {
  using T = typename Derived::Scalar;
  std::vector<T> data(static_cast<std::size_t>(values.size()));
  if constexpr (Derived::IsVectorAtCompileTime) {
    using Same = Eigen::Matrix<T, Derived::RowsAtCompileTime, Derived::ColsAtCompileTime,
                               Derived::RowsAtCompileTime == 1 ? Eigen::RowMajor : 0>;
    Eigen::Map<Same>(data.data(), values.rows(), values.cols()) = values;
    return {{values.size()}, std::move(data)};
  } else {
    Eigen::Map<Matrix<T>>(data.data(), values.rows(), values.cols()) = values;
    return {{values.rows(), values.cols()}, std::move(data)};
  }
}

}  // namespace flash_steps

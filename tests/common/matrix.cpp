#include "common/tensor/matrix.hpp"

#include <doctest/doctest.h>

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

namespace flash_steps {

namespace {

// What a function sees of its argument: where it lies, and how far apart rows are.
const float* address(MatrixIn<float> M) { return M.data(); }
const float* vector_address(VectorIn<float> v) { return v.data(); }
Index row_distance(MatrixIn<float> M) { return M.outerStride(); }
void fill(MatrixOut<float> M, float value) { M.setConstant(value); }
void fill_vector(VectorOut<float> v, float value) { v.setConstant(value); }

Matrix<float> counting(Index rows, Index cols) {
  Matrix<float> M(rows, cols);
  for (Index i = 0; i < M.size(); ++i) M.data()[i] = static_cast<float>(i);
  return M;
}

using ColumnMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

}  // namespace

TEST_CASE("cpu: matrix is row-major and indexed by signed 64-bit integers") {
  const Matrix<float> M = counting(2, 3);
  CHECK(M(0, 2) == 2.0f);
  CHECK(M(1, 0) == 3.0f);
  CHECK(std::is_signed_v<Index>);
  CHECK(sizeof(Index) == 8);
  CHECK(std::isinf(kInf<float>));
  CHECK(-kInf<double> < 0.0);
}

TEST_CASE("cpu: matrix blocks of rows and columns pass without a copy") {
  const Matrix<float> M = counting(5, 7);
  CHECK(address(M) == M.data());
  CHECK(address(M.middleRows(2, 3)) == M.data() + 2 * 7);
  CHECK(address(M.middleCols(3, 2)) == M.data() + 3);
  CHECK(row_distance(M.middleCols(3, 2)) == 7);
  CHECK(address(M.block(1, 2, 3, 4)) == M.data() + 7 + 2);
  CHECK(address(M.middleRows(4, 1)) == M.data() + 4 * 7);
  CHECK(address(M.middleRows(5, 0)) == M.data() + 5 * 7);
}

TEST_CASE("cpu: matrix arguments that must be copied are copied") {
  const ColumnMajor C = counting(3, 4);
  const Matrix<float> M = counting(3, 4);
  CHECK(address(C) != C.data());
  CHECK(address(M.col(1)) != M.data() + 1);
  CHECK(vector_address(M.col(1)) != M.data() + 1);
  const auto sum = [](MatrixIn<float> A) { return A(0, 1) + A(2, 3); };
  CHECK(sum(C) == 12.0f);  // 1 + 11, in whichever order they are stored
  CHECK(sum(2.0f * M) == 24.0f);
}

TEST_CASE("cpu: matrix outputs are written in place") {
  Matrix<float> M = Matrix<float>::Zero(4, 5);
  fill(M.block(1, 1, 2, 3), 1.0f);
  CHECK(M.sum() == 6.0f);
  CHECK(M.block(1, 1, 2, 3).sum() == 6.0f);
  Vector<float> v = Vector<float>::Zero(6);
  fill_vector(v.segment(2, 3), 1.0f);
  CHECK(v.segment(2, 3).sum() == 3.0f);
  CHECK(v.sum() == 3.0f);
}

TEST_CASE("cpu: matrix outputs refuse what would need a copy") {
  using Column = decltype(std::declval<Matrix<float>&>().col(0));
  CHECK(std::is_convertible_v<Matrix<float>&, MatrixOut<float>>);
  CHECK_FALSE(std::is_convertible_v<ColumnMajor&, MatrixOut<float>>);
  CHECK_FALSE(std::is_convertible_v<const Matrix<float>&, MatrixOut<float>>);
  CHECK_FALSE(std::is_convertible_v<Column, MatrixOut<float>>);
  CHECK_FALSE(std::is_convertible_v<Column, VectorOut<float>>);
  CHECK_FALSE(std::is_convertible_v<Matrix<double>&, MatrixOut<float>>);
}

TEST_CASE("cpu: matrix rows pass as vectors without a copy") {
  Matrix<float> M = counting(3, 4);
  CHECK(vector_address(M.row(2).transpose()) == M.data() + 8);
  fill_vector(M.row(1).transpose(), 0.0f);
  CHECK(M.row(1).sum() == 0.0f);
  CHECK(M.sum() == 0.0f + 1 + 2 + 3 + 8 + 9 + 10 + 11);
}

}  // namespace flash_steps

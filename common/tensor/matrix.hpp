// Row-major matrices, and how functions take them.
//
//   template <class T>
//   void x_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixOut<T> O, VectorOut<T> LSE);
//   x_cpu<float>(Q, K, O, LSE);   // say the type: it is not deduced through Eigen::Ref
//
// What passes without a copy: a whole Matrix, and a block of its rows or columns
// (Q.middleRows(r, n), Q.middleCols(c, n)), because Ref carries the distance between rows.
// What does not: a column-major matrix, an expression such as 2 * Q, or Q.col(c). MatrixIn
// takes those through a silent temporary copy; MatrixOut refuses to compile. The same holds for
// vectors, whose elements must be neighbours in memory: a Vector, its segments and
// Q.row(r).transpose() pass as they are; Q.col(c) is copied by VectorIn and refused by
// VectorOut.
#pragma once

#include <Eigen/Core>
#include <limits>
#include <type_traits>

namespace flash_steps {

// Sizes and positions: signed 64-bit everywhere, so that differences may be negative and
// offsets may pass 2^31.
using Index = Eigen::Index;
static_assert(
    std::is_signed_v<Index> && sizeof(Index) == 8,
    "sizes and offsets are signed 64-bit; do not redefine EIGEN_DEFAULT_DENSE_INDEX_TYPE");

// (rows, cols), row-major: one row (one token's q, k or v) is contiguous. Not initialised.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// (rows), a column: one number a token, such as m, l or LSE. Not initialised.
template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

// Arguments that a function reads.
template <class T>
using MatrixIn = const Eigen::Ref<const Matrix<T>>&;
template <class T>
using VectorIn = const Eigen::Ref<const Vector<T>>&;

// Arguments that a function writes. By value: a Ref is a pointer and strides. The caller gives
// the size; assigning something of another size is an error, never a reallocation.
template <class T>
using MatrixOut = Eigen::Ref<Matrix<T>>;
template <class T>
using VectorOut = Eigen::Ref<Vector<T>>;

// +infinity. -kInf<T> is the maximum over no scores at all, and a hidden score.
template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();

}  // namespace flash_steps

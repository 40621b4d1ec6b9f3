// A matrix in memory that stands for HBM: every element that is loaded or stored is counted.
// What a function keeps in its own variables stands for the memory on chip, and is free.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// T is const for a matrix that is only read. Owns nothing: the matrix and the two counters must
// outlive it.
template <class T>
class CountedMatrix {
 public:
  using Value = std::remove_const_t<T>;

  // Any Eigen matrix or vector that lies in memory.
  template <class Dense>
  CountedMatrix(Dense& matrix, std::int64_t& reads, std::int64_t& writes)
      : first_(matrix.data()),
        row_stride_(matrix.rowStride()),
        reads_(&reads),
        writes_(&writes) {}

  // The (rows, cols) elements from (row0, col0) on, copied onto the chip.
  Matrix<Value> load(Index row0, Index col0, Index rows, Index cols) const {
    Matrix<Value> tile(rows, cols);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < cols; ++c) {
        tile(r, c) = first_[(row0 + r) * row_stride_ + col0 + c];
        ++*reads_;
      }
    }
    return tile;
  }

  // A tile from the chip to the place that begins at (row0, col0).
  void store(Index row0, Index col0, const Matrix<Value>& tile) const {
    for (Index r = 0; r < tile.rows(); ++r) {
      for (Index c = 0; c < tile.cols(); ++c) {
        first_[(row0 + r) * row_stride_ + col0 + c] = tile(r, c);
        ++*writes_;
      }
    }
  }

 private:
  T* first_;
  Index row_stride_;
  std::int64_t *reads_, *writes_;
};

}  // namespace flash_steps

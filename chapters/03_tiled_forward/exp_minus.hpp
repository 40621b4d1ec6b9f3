// The exponential of a row of scores, as far as softmax needs it.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <limits>

namespace flash_steps {

// row = exp(row - shift), and exactly 0 where that is below the smallest normal number: there,
// and for a score of -inf, Eigen's exp stops at some tiny number that differs between CPUs. Its
// select is slow, so it is kept for rows that need it.
template <class Row, class T>
void exp_minus(Row row, T shift) {
  // [begin 03.exp-minus]
  const T lowest = std::log(std::numeric_limits<T>::min());
  if (row.minCoeff() - shift > lowest) {
    row = (row - shift).exp();
  } else {
    row = (row - shift < lowest).select(T(0), (row - shift).exp());
  }
  // [end]
}

}  // namespace flash_steps

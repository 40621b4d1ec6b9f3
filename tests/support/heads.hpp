// What tests need of batches of heads beside HeadsArray itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"

namespace flash_steps::test {

// All rows of all heads below each other, (B * H * N, d), so that check_close and same_bits
// serve for batches too. A map into the array, which must outlive it.
template <class T>
Eigen::Map<const Matrix<T>> as_rows(const HeadsArray<T>& heads) {
  return {heads.elements().data(), heads.B() * heads.H() * heads.N(), heads.d()};
}

// The same numbers in another type, for a call of the float64 oracle with float32 inputs.
template <class To, class From>
HeadsArray<To> cast_heads(const HeadsArray<From>& heads) {
  HeadsArray<To> result(heads.B(), heads.H(), heads.N(), heads.d());
  std::transform(heads.elements().begin(), heads.elements().end(), result.elements().begin(),
                 [](From x) { return static_cast<To>(x); });
  return result;
}

}  // namespace flash_steps::test

// How far a result is from a reference, as the demonstrations print it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"

namespace flash_steps {

// The largest |actual - expected| over max(1, largest finite |expected|), equal infinities
// being equal; NaN if there is one in a difference. Both have the same shape and lie in one
// piece of memory, in the same order: vectors, matrices, heads.
template <class A, class B>
double relative_error(const A& actual, const B& expected) {
  double largest = 1, worst = 0;
  for (Index i = 0; i < static_cast<Index>(expected.size()); ++i) {
    const double a = double{actual.data()[i]}, e = double{expected.data()[i]};
    if (a == e) continue;
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    if (!(std::abs(a - e) <= worst)) worst = std::abs(a - e);
    if (std::isnan(worst)) return worst;
  }
  return worst / largest;
}

template <class A, class B>
double relative_error(const HeadsArray<A>& actual, const HeadsArray<B>& expected) {
  return relative_error(actual.elements(), expected.elements());
}

}  // namespace flash_steps

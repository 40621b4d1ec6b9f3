// Results field by field, whatever the types are called: of a forward pass O and LSE, of a
// backward pass dQ, dK and dV, each a matrix or a batch of heads.
#pragma once

#include "tests/support/compare.hpp"
#include "tests/support/heads.hpp"

namespace flash_steps::test {

template <class A, class B>
void check_outputs(const A& actual, const B& expected, Budget budget = kFloat32,
                   bool nan_expected = false) {
  check_close(actual.O, expected.O, budget, nan_expected);
  check_close(actual.LSE, expected.LSE, budget, nan_expected);
}
template <class R>
bool same_outputs(const R& a, const R& b) {
  return same_bits(a.O, b.O) && same_bits(a.LSE, b.LSE);
}

template <class A, class B>
void check_gradients(const A& actual, const B& expected, Budget budget = kFloat32Gradient,
                     bool nan_expected = false) {
  check_close(actual.dQ, expected.dQ, budget, nan_expected);
  check_close(actual.dK, expected.dK, budget, nan_expected);
  check_close(actual.dV, expected.dV, budget, nan_expected);
}
template <class R>
bool same_gradients(const R& a, const R& b) {
  return same_bits(a.dQ, b.dQ) && same_bits(a.dK, b.dK) && same_bits(a.dV, b.dV);
}

}  // namespace flash_steps::test

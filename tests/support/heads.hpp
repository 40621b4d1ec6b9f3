// What tests need of batches of heads beside HeadsArray itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/reference/heads.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"
#include "tests/support/compare.hpp"

namespace flash_steps::test {

using Heads = HeadsArray<float>;

// All rows of all heads below each other, (B * H * N, d), so that check_close and same_bits
// serve for batches too. A map into the array, which must outlive it.
template <class T>
Eigen::Map<const Matrix<T>> as_rows(const HeadsArray<T>& heads) {
  return {heads.elements().data(), heads.B() * heads.H() * heads.N(), heads.d()};
}

// So they do: the same as for matrices, row by row.
template <class A, class B>
void check_close(const HeadsArray<A>& actual, const HeadsArray<B>& expected, Budget budget,
                 bool nan_expected = false) {
  check_close(as_rows(actual), as_rows(expected), budget, nan_expected);
}
// And against a matrix of all rows: check_close(heads, doubles({...}), budget) where d = 1.
template <class A, class B>
void check_close(const HeadsArray<A>& actual, const B& expected, Budget budget,
                 bool nan_expected = false) {
  check_close(as_rows(actual), expected, budget, nan_expected);
}
template <class T>
bool same_bits(const HeadsArray<T>& a, const HeadsArray<T>& b) {
  return same_bits(as_rows(a), as_rows(b));
}

// The same numbers in another type, for a call of the float64 oracle with float32 inputs.
template <class To, class From>
HeadsArray<To> cast_heads(const HeadsArray<From>& heads) {
  HeadsArray<To> result(heads.B(), heads.H(), heads.N(), heads.d());
  std::transform(heads.elements().begin(), heads.elements().end(), result.elements().begin(),
                 [](From x) { return static_cast<To>(x); });
  return result;
}

// Such calls: naive attention in float64, and its gradients.
inline ReferenceHeadsResult reference(const Heads& Q, const Heads& K, const Heads& V,
                                      const ReferenceHeadsOptions& options) {
  return reference_attention_heads(cast_heads<double>(Q).view(), cast_heads<double>(K).view(),
                                   cast_heads<double>(V).view(), options);
}
inline ReferenceHeadsGradients reference_gradients(const Heads& Q, const Heads& K,
                                                   const Heads& V, const Heads& dO,
                                                   const ReferenceHeadsOptions& options,
                                                   const Matrix<double>* dLSE = nullptr) {
  return reference_backward_heads(cast_heads<double>(Q).view(), cast_heads<double>(K).view(),
                                  cast_heads<double>(V).view(), cast_heads<double>(dO).view(),
                                  options, dLSE);
}

// [1, 1, N, 1]
inline Heads one_head(const std::vector<float>& values) {
  Heads heads(1, 1, static_cast<std::int64_t>(values.size()), 1);
  heads.elements() = values;
  return heads;
}

}  // namespace flash_steps::test

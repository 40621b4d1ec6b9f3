// One head: its inputs, the oracle's answer, and what every forward pass refuses.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/sizes.hpp"
#include "tests/support/values.hpp"

namespace flash_steps::test {

template <class T>
struct HeadOf {
  Matrix<T> Q, K, V;  // (Nq, d), (Nk, d), (Nk, d)
};
using Head = HeadOf<float>;

// The deviation is that of Q and K: it spreads the scores.
template <class T = float>
HeadOf<T> random_head(Index Nq, Index Nk, Index d, std::uint64_t seed = 0,
                      double deviation = 1.0) {
  return {random_matrix<T>(Nq, d, seed, 0, deviation),
          random_matrix<T>(Nk, d, seed, 1, deviation), random_matrix<T>(Nk, d, seed, 2)};
}

// Naive attention in float64 to inputs in float32.
inline ReferenceResult reference(const Floats& Q, const Floats& K, const Floats& V,
                                 const ReferenceOptions& options = {}) {
  return reference_attention(Q.cast<double>(), K.cast<double>(), V.cast<double>(), options);
}

// The sentences for shapes that no forward pass takes. message(Q, K, V, tile) is what the
// chapter's own says to them.
template <class Message>
void check_refused_shapes(const Message& message) {
  const Head h = random_head(3, 4, 5);
  CHECK(message(h.Q, Floats::Zero(4, 6), h.V, {}) == "K must be [4, 5], found [4, 6]");
  CHECK(message(h.Q, h.K, Floats::Zero(3, 5), {}) == "V must be [4, 5], found [3, 5]");
  CHECK(message(h.Q, h.K, h.V, {.Br = 0, .Bc = 4}) == "Br must be at least 1, found 0");
  CHECK(message(Floats(2, 0), Floats(3, 0), Floats(3, 0), {}) ==
        "the head dimension d must be from 1 to 256, found 0");
}

}  // namespace flash_steps::test

// The shapes that batched attention asks for. No Eigen: nvcc reads this file too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/tensor/element_count.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

struct BatchShape {
  std::int64_t B, H, N, d;
  bool operator==(const BatchShape&) const = default;
};

// The shape of anything with B(), H(), N() and d(): views on the host and heads on the device.
template <class X>
BatchShape batch_shape(const X& heads) {
  return {heads.B(), heads.H(), heads.N(), heads.d()};
}

inline void require_batch_shape(const char* name, BatchShape found, BatchShape expected) {
  if (found == expected) return;
  const auto text = [](BatchShape s) {
    return "[" + std::to_string(s.B) + ", " + std::to_string(s.H) + ", " + std::to_string(s.N) +
           ", " + std::to_string(s.d) + "]";
  };
  require(false, std::string(name) + " must be " + text(expected) + ", found " + text(found));
}

// Q, O [B, H, Nq, d], K, V [B, Hkv, Nk, d], LSE (B * H, Nq), with 1 <= d <= 256 and Hkv a
// divisor of H (0 if H is); the other sizes may be 0. Throws std::invalid_argument naming the
// array that does not fit.
inline void require_batch_shapes(BatchShape Q, BatchShape K, BatchShape V, BatchShape O,
                                 Shape LSE) {
  if (Q.d < 1 || Q.d > 256) {
    require(false, "the head dimension d must be from 1 to 256, found " + std::to_string(Q.d));
  }
  require(element_count(std::array{Q.B, Q.H, Q.N}).has_value(),
          "the number of rows of Q does not fit in 64 bits");  // strides of 0 need no memory
  require_batch_shape("K", K, {Q.B, K.H, K.N, Q.d});
  require_batch_shape("V", V, K);
  require_batch_shape("O", O, Q);
  require_shape("LSE", LSE, {Q.B * Q.H, Q.N});
  const bool groups = K.H == 0 ? Q.H == 0 : Q.H % K.H == 0;
  if (!groups) {
    require(false, "the number of K/V heads must divide the number of query heads, found " +
                       std::to_string(K.H) + " for " + std::to_string(Q.H));
  }
}

// And beside them dO, dQ as Q, dK, dV as K, delta and dLSE (B * H, Nq).
inline void require_gradient_shapes(BatchShape Q, BatchShape K, BatchShape dO, BatchShape dQ,
                                    BatchShape dK, BatchShape dV, Shape delta,
                                    std::optional<Shape> dLSE) {
  require_batch_shape("dO", dO, Q);
  require_batch_shape("dQ", dQ, Q);
  require_batch_shape("dK", dK, K);
  require_batch_shape("dV", dV, K);
  require_shape("delta", delta, {Q.B * Q.H, Q.N});
  if (dLSE) require_shape("dLSE", *dLSE, {Q.B * Q.H, Q.N});
}

}  // namespace flash_steps

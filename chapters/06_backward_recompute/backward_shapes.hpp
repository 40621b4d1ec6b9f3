// The shapes that the backward pass asks for. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

struct BackwardShapes {
  Shape Q, K, V, O, dO, dQ, dK, dV;
  std::int64_t m, l, delta;
  std::optional<std::int64_t> dLSE;
};

// Q, O, dO, dQ (Nq, d), K, V, dK, dV (Nk, d), m, l, delta, dLSE (Nq), 1 <= d <= 256. Throws
// std::invalid_argument naming the one that does not fit.
inline void require_backward_shapes(const BackwardShapes& s) {
  require_attention_shapes(s.Q, s.K, s.V, s.O);
  require_shape("dO", s.dO, s.Q);
  require_shape("dQ", s.dQ, s.Q);
  require_shape("dK", s.dK, s.K);
  require_shape("dV", s.dV, s.K);
  const auto require_size = [&](const char* name, std::int64_t size) {
    if (size == s.Q.rows) return;
    require(false, std::string(name) + " must be [" + std::to_string(s.Q.rows) + "], found [" +
                       std::to_string(size) + "]");
  };
  require_size("m", s.m);
  require_size("l", s.l);
  require_size("delta", s.delta);
  if (s.dLSE) require_size("dLSE", *s.dLSE);
}

}  // namespace flash_steps

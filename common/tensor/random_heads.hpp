// A random batch of heads.
#pragma once

#include <cstdint>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/random_matrix.hpp"

namespace flash_steps {

// [B, H, N, d] independent normal numbers, every head its own. Head (b, h) takes stream
// 3 (b H + h) + which of the seed, `which` being 0, 1, 2 for Q, K, V.
template <class T>
HeadsArray<T> random_heads(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d,
                           std::uint64_t seed, std::uint64_t which) {
  HeadsArray<T> heads(B, H, N, d);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      const auto stream = 3 * static_cast<std::uint64_t>(b * H + h) + which;
      heads.head(b, h) = random_matrix<T>(N, d, seed, stream);
    }
  }
  return heads;
}

}  // namespace flash_steps

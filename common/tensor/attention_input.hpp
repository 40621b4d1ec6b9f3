// The input of attention for one head, and for a batch of heads, in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/random_heads.hpp"
#include "common/tensor/random_matrix.hpp"

namespace flash_steps {

template <class T>
struct Head {
  Matrix<T> Q, K, V;  // (Nq, d), (Nk, d), (Nk, d)

  template <class To>
  Head<To> cast() const {
    return {Q.template cast<To>(), K.template cast<To>(), V.template cast<To>()};
  }
};

inline Head<float> random_head(Index Nq, Index Nk, Index d, std::uint64_t seed) {
  return {random_matrix<float>(Nq, d, seed, 0), random_matrix<float>(Nk, d, seed, 1),
          random_matrix<float>(Nk, d, seed, 2)};
}

template <class T>
struct Batch {
  HeadsArray<T> Q, K, V;  // [B, H, Nq, d], [B, Hkv, Nk, d], [B, Hkv, Nk, d]
  std::size_t rank = 4;   // of the outputs: 2 if q's file is [N, d]

  template <class To>
  Batch<To> cast() const {
    return {Q.template cast<To>(), K.template cast<To>(), V.template cast<To>(), rank};
  }
};

template <class T>
Batch<T> random_batch(Index B, Index H, Index Hkv, Index Nq, Index Nk, Index d,
                      std::uint64_t seed) {
  return {random_heads<T>(B, H, Nq, d, seed, 0), random_heads<T>(B, Hkv, Nk, d, seed, 1),
          random_heads<T>(B, Hkv, Nk, d, seed, 2)};
}

}  // namespace flash_steps

// Which weights dropout keeps: a function of the weight's place, on the CPU and on the device.
// No Eigen: nvcc reads this file too. The functions are constexpr, so that kernels may call
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "common/random/philox.hpp"
#include "common/tensor/layout.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

struct Dropout {
  double p = 0;            // the probability of being dropped, 0 <= p < 1
  std::uint64_t seed = 0;  // of a training run, say
  std::int64_t offset =
      0;  // from 0 to 2^32 - 1: of a layer in a step. Another one, another mask

  // What the kept weights are multiplied by, so that the mean over all masks is right.
  template <class T>
  T keep_factor() const {
    return static_cast<T>(1 / (1 - p));
  }
};

// Masks have one function, keep4: which of the weights of four neighbouring columns are kept,
// those of the keys 4 quad to 4 quad + 3 for query `row` of query head h of batch b. Bit i,
// from the lowest on, is that of key 4 quad + i. There must be such a row and at least the
// first of the keys; what the bits of keys past the last one are does not matter.

// The mask that is computed. Nothing is stored, and every place is computed apart: whatever the
// tiles, the threads, the device and the walk, a place has the same bit.
struct PhiloxMask {
  std::uint64_t seed;
  std::uint64_t threshold;  // drops the numbers below it: p * 2^32 of the 2^32
  std::uint32_t offset;
  std::int64_t H;  // query heads

  PhiloxMask(const Dropout& dropout, std::int64_t H)
      : seed(dropout.seed),
        threshold(static_cast<std::uint64_t>(std::round(dropout.p * 0x1p32))),
        offset(static_cast<std::uint32_t>(dropout.offset)),
        H(H) {}

  constexpr unsigned keep4(std::int64_t b, std::int64_t h, std::int64_t row,
                           std::int64_t quad) const {
    // [begin 12.keep4]
    // one call has the numbers of four keys: the place is the counter, the seed is the key
    const PhiloxWords numbers =
        philox({{static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(row),
                 static_cast<std::uint32_t>(b * H + h), offset}},
               seed);
    unsigned kept = 0;
    for (int i = 0; i < 4; ++i) {
      // in 64 bits: rounded, p may be 2^32 / 2^32, and then nothing is kept
      if (std::uint64_t{numbers.word[i]} >= threshold) kept |= 1u << i;
    }
    return kept;
    // [end]
  }
};

// The mask that is read, a byte a weight: Bytes is what points to them, const std::uint8_t* or
// global<const std::uint8_t>.
template <class Bytes>
struct StoredMask {
  Bytes bytes;     // 0 = dropped
  HeadsLayout at;  // of [B, H, Nq, Nk]

  constexpr unsigned keep4(std::int64_t b, std::int64_t h, std::int64_t row,
                           std::int64_t quad) const {
    // [begin 12.stored-keep4]
    const std::int64_t first = at.offset(b, h, row) + 4 * quad;
    const std::int64_t count = std::min<std::int64_t>(4, at.d - 4 * quad);  // may be short
    unsigned kept = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (bytes[first + i] != 0) kept |= 1u << i;
    }
    return kept;
    // [end]
  }
};

// Throws std::invalid_argument unless 0 <= p < 1, and the offset, all B * H heads, all rows and
// all groups of four keys fit into the 32-bit words of a counter.
inline void require_dropout(const Dropout& dropout, std::int64_t B, std::int64_t H,
                            std::int64_t Nq, std::int64_t Nk) {
  constexpr std::int64_t kWords = std::int64_t{1} << 32;
  if (!(dropout.p >= 0 && dropout.p < 1)) {  // NaN is neither
    char value[32];
    std::snprintf(value, sizeof value, "%.9g", dropout.p);
    require(false, "dropout must be at least 0 and below 1, found " + std::string(value));
  }
  const auto check = [](const char* what, std::int64_t found, std::int64_t last) {
    if (found >= 0 && found <= last) return;
    require(false, std::string(what) + " must be from 0 to " + std::to_string(last) +
                       " for dropout, found " + std::to_string(found));
  };
  check("the offset", dropout.offset, kWords - 1);
  if (H > 0 && B > kWords / H) {
    require(false, "there must be at most 4294967296 heads for dropout, found " +
                       std::to_string(B) + " * " + std::to_string(H));
  }
  check("Nq", Nq, kWords);
  check("Nk", Nk, 4 * kWords);
}

}  // namespace flash_steps

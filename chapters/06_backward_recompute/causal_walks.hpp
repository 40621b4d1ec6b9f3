// Where the walks of the backward pass begin, and which keys of a tile a row takes part with:
// in integers. No Eigen: nvcc reads this file too. The functions are constexpr, so that kernels
// may call them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "chapters/04_causal_skipping/causal_tiles.hpp"

namespace flash_steps {

// The first row of the first query tile that sees key k_start, or any key after it; Nq if none
// does. Query i sees the keys j <= i + offset, so this tile is the first that a key tile
// beginning at k_start has to visit: those before it are hidden.
constexpr std::int64_t first_query_tile(std::int64_t k_start, std::int64_t Nq, std::int64_t Br,
                                        std::int64_t offset) {
  // [begin 06.first-query-tile]
  const std::int64_t first = std::max<std::int64_t>(0, k_start - offset);  // it sees k_start
  return first < Nq ? first / Br * Br : Nq;
  // [end]
}

// How many leading keys of a tile of `cols` keys from k_start on query `row` takes part with in
// the backward pass: those that it sees, and none at all if its l is 0.
template <class T>
constexpr std::int64_t used_keys(T l, std::int64_t row, std::int64_t k_start, std::int64_t cols,
                                 std::int64_t offset) {
  // [begin 06.used-keys]
  if (l == T(0)) return 0;  // left out, not multiplied by 0: its dO or dLSE may be NaN
  return visible_keys(row, k_start, cols, offset);
  // [end]
}

}  // namespace flash_steps

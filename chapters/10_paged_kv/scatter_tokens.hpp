// Contiguous sequences into a pool, as if their blocks had come one by one: inputs for the
// demonstration, the tests and the benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "chapters/10_paged_kv/block_table.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/heads_array.hpp"

namespace flash_steps {

template <class T>
struct ScatteredTokens {
  HeadsArray<T> pool;  // [2 * blocks, Hkv, block_size, d], keys' blocks first
  BlockTable table;
};

// 0 .. count - 1 in an order that follows from the seed, on every platform; ascending without.
inline std::vector<std::int64_t> shuffled(std::int64_t count,
                                          std::optional<std::uint64_t> seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (!seed) return order;
  std::mt19937_64 bits(*seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits() % i]);
  return order;
}

// K, V [B, Hkv, N, d], of which sequence b has the first seq_lens[b] <= N tokens. There are as
// many blocks as they need and `spare` more, taken in shuffled order, or in ascending order
// without a seed; the table is as wide as the longest sequence needs. Slots without a token
// hold `filler`, entries not in use -1.
template <class T>
ScatteredTokens<T> scatter_tokens(HeadsView<const T> K, HeadsView<const T> V,
                                  std::span<const std::int64_t> seq_lens,
                                  std::int64_t block_size, std::int64_t spare,
                                  std::optional<std::uint64_t> seed, T filler) {
  BlockTable table{K.B(), 0, {}, {seq_lens.begin(), seq_lens.end()}};
  table.max_blocks = ceil_div(table.longest(), block_size);
  table.ids.assign(static_cast<std::size_t>(table.B * table.max_blocks), -1);
  std::int64_t blocks = spare;
  for (const std::int64_t length : seq_lens) blocks += ceil_div(length, block_size);

  HeadsArray<T> pool(2 * blocks, K.H(), block_size, K.d(), filler);
  const std::vector<std::int64_t> order = shuffled(blocks, seed);
  auto next = order.begin();
  for (std::int64_t b = 0; b < table.B; ++b) {
    for (std::int64_t j = 0; j < table.seq_len(b); j += block_size) {
      const std::int64_t id = *next++, rows = std::min(block_size, table.seq_len(b) - j);
      table.ids[static_cast<std::size_t>(b * table.max_blocks + j / block_size)] = id;
      for (std::int64_t kv = 0; kv < K.H(); ++kv) {
        pool.head(id, kv).topRows(rows) = K.head(b, kv).middleRows(j, rows);
        pool.head(blocks + id, kv).topRows(rows) = V.head(b, kv).middleRows(j, rows);
      }
    }
  }
  return {std::move(pool), std::move(table)};
}

}  // namespace flash_steps

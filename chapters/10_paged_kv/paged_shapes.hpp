// What both twins ask of their arguments, and which keys a block of them has to look at. No
// Eigen: nvcc reads this file too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/09_flash_decoding/splits.hpp"
#include "chapters/10_paged_kv/paged_cache.hpp"
#include "common/tensor/layout.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

// Q and O [B, H, Nq, d], pool [2 * blocks, Hkv, block_size, d], LSE (B * H, Nq), and a table of
// B sequences the longest of which has `longest` tokens; Hkv divides H and 1 <= d <= 256.
// Returns the sizes with Nk = longest. Throws std::invalid_argument naming the first that does
// not fit.
DecodingSizes require_paged_shapes(const HeadsLayout& Q, const HeadsLayout& pool,
                                   const HeadsLayout& O, Shape LSE, std::int64_t sequences,
                                   std::int64_t longest);

// A token's k and v (Hkv, d) fit a pool, and the pool fits a cache.
void require_token_shapes(const HeadsLayout& pool, const PagedCache& cache, Shape k, Shape v);

// The keys of a split that the block's rows walk over, query i seeing the keys j <= i + offset:
// all its tiles of Bc keys but those that a causal mask hides from every row.
constexpr KeyRange seen_keys(const KeyRange& keys, const BlockRows& at, std::int64_t Nq,
                             std::int64_t Bc, std::int64_t offset) {
  // [begin 10.seen-keys]
  // the rows count through the queries of one head, then through those of the next
  const GroupRow first = group_row(at.first_row, Nq),
                 last = group_row(at.first_row + at.rows - 1, Nq);
  const std::int64_t last_query = first.head == last.head ? last.query : Nq - 1;
  const std::int64_t seen = visible_keys(last_query, keys.begin, keys.end - keys.begin, offset);
  return {keys.begin, std::min(keys.begin + ceil_div(seen, Bc) * Bc, keys.end)};
  // [end]
}

}  // namespace flash_steps

#include "chapters/10_paged_kv/paged_shapes.hpp"

#include <string>

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

DecodingSizes require_paged_shapes(const HeadsLayout& Q, const HeadsLayout& pool,
                                   const HeadsLayout& O, Shape LSE, std::int64_t sequences,
                                   std::int64_t longest) {
  if (sequences != Q.B) {
    require(false, "the block table must have a row for each of Q's " + std::to_string(Q.B) +
                       " sequences, found " + std::to_string(sequences));
  }
  if (pool.B % 2 != 0) {
    require(false, "a pool has as many blocks of keys as of values, found " +
                       std::to_string(pool.B) + " together");
  }
  if (pool.d != Q.d) {
    require(false, "the pool's d must be " + std::to_string(Q.d) + ", as Q's, found " +
                       std::to_string(pool.d));
  }
  // the rest as if the cache lay contiguously
  const HeadsLayout cache{Q.B, pool.H, longest, Q.d};
  return require_decoding_shapes(Q, cache, cache, O, LSE);
}

void require_token_shapes(const HeadsLayout& pool, const PagedCache& cache, Shape k, Shape v) {
  if (pool.B != 2 * cache.blocks() || pool.N != cache.block_size()) {
    require(false, "a cache of " + std::to_string(cache.blocks()) + " blocks of " +
                       std::to_string(cache.block_size()) + " tokens needs a pool of " +
                       std::to_string(2 * cache.blocks()) + " blocks, for keys and values, " +
                       "found " + std::to_string(pool.B) + " of " + std::to_string(pool.N));
  }
  require_shape("k", k, {pool.H, pool.d});
  require_shape("v", v, {pool.H, pool.d});
}

}  // namespace flash_steps

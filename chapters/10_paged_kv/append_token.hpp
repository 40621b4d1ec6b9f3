// A new token's key and value go into the cache, on the CPU.
#pragma once

#include "chapters/10_paged_kv/paged_cache.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// Appends a token to sequence b of `cache`: its key k and value v, (Hkv, d), a row for each KV
// head, go into the pool [2 * blocks, Hkv, block_size, d], keys' blocks first; after a fork,
// with a copy of the block that they belong to. T = float or double. Throws what
// PagedCache::append does, and std::invalid_argument for shapes that do not fit each other;
// then neither pool nor cache has changed.
template <class T>
void append_token_cpu(HeadsView<T> pool, PagedCache& cache, Index b, MatrixIn<T> k,
                      MatrixIn<T> v);

}  // namespace flash_steps

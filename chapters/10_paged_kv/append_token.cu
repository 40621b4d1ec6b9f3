// Chapter 10: a new token's key and value go into the cache, on the device.
#include "chapters/10_paged_kv/append_token_cuda.hpp"
#include "chapters/10_paged_kv/paged_shapes.hpp"
#include "common/device/kernel.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block of threads: one KV head, of the keys or of the values.
__global__ void append_token_kernel(global<float> pool,
                                    HeadsLayout pool_at,        // (one of 2) blocks
                                    global<const float> token,  // (Hkv, d)
                                    NewSlot at) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t kv = blockIdx.x, d = pool_at.d;
  // [begin 10.append-token-cuda]
  if (at.copy_from >= 0) {  // the block's earlier tokens
    for (std::int64_t e = thread; e < at.slot * d; e += threads) {
      pool[pool_at.offset(at.block, kv, e / d) + e % d] =
          pool[pool_at.offset(at.copy_from, kv, e / d) + e % d];
    }
  }
  for (std::int64_t x = thread; x < d; x += threads) {
    pool[pool_at.offset(at.block, kv, at.slot) + x] = token[kv * d + x];
  }
  // [end]
}

void launch_append(DeviceHeads<float>& pool, const DeviceMatrix<float>& token,
                   const NewSlot& at) {
  launch(append_token_kernel, {pool.H(), kThreads}, pool, pool.layout(), token, at);
}

}  // namespace

void append_token_cuda(DeviceHeads<float>& pool, PagedCache& cache, std::int64_t b,
                       const DeviceMatrix<float>& k, const DeviceMatrix<float>& v) {
  require_token_shapes(pool.layout(), cache, shape_of(k), shape_of(v));
  NewSlot at = cache.append(b);
  if (pool.H() == 0) return;
  launch_append(pool, k, at);
  at.block += cache.blocks();  // the values' blocks come after the keys'
  if (at.copy_from >= 0) at.copy_from += cache.blocks();
  launch_append(pool, v, at);
}

}  // namespace flash_steps

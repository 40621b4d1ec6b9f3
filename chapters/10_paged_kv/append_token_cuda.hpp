// A new token's key and value go into the cache, on the device. No Eigen: nvcc and the host
// compiler both read this file.
#pragma once

#include "chapters/10_paged_kv/paged_cache.hpp"
#include "common/device/heads.hpp"

namespace flash_steps {

// The twin of append_token_cpu in float32, a block of threads to a KV head. Asynchronous on a
// GPU. A DeviceBlockTable is a copy: attention that should see the token needs a new one.
void append_token_cuda(DeviceHeads<float>& pool, PagedCache& cache, std::int64_t b,
                       const DeviceMatrix<float>& k, const DeviceMatrix<float>& v);

}  // namespace flash_steps

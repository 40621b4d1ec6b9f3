#include "common/device/kernel.hpp"
#include "tests/10_paged_kv_cuda.hpp"

namespace flash_steps::test {
namespace {

constexpr int kThreads = 128;

// A thread to a query.
__global__ void walk_in_shared_memory_kernel(global<const float> Q, global<const float> K,
                                             global<const float> V, global<float> O, int Nq,
                                             int Nk, int Bc, bool second_barrier) {
  const int thread = static_cast<int>(threadIdx.x);
  dynamic_shared smem;
  const shared<float> sK = smem.take<float>(Bc), sV = smem.take<float>(Bc);
  const float q = thread < Nq ? Q[thread] : 0.0f;
  float m = -INFINITY, l = 0.0f, o = 0.0f;
  for (int k_start = 0; k_start < Nk; k_start += Bc) {
    const int cols = std::min(Bc, Nk - k_start);
    for (int c = thread; c < cols; c += kThreads) {
      sK[c] = K[k_start + c];
      sV[c] = V[k_start + c];
    }
    __syncthreads();  // the tile is complete
    for (int c = 0; c < cols; ++c) {
      const float s = q * sK[c], m_new = fmaxf(m, s);
      const float alpha = expf(m - m_new), p = expf(s - m_new);
      l = alpha * l + p;
      o = alpha * o + p * sV[c];
      m = m_new;
    }
    if (second_barrier) __syncthreads();  // the tile may be overwritten
  }
  if (thread < Nq) O[thread] = o / l;
}

}  // namespace

void walk_in_shared_memory_cuda(const DeviceArray<float>& Q, const DeviceArray<float>& K,
                                const DeviceArray<float>& V, DeviceArray<float>& O, int Bc,
                                bool second_barrier) {
  launch(walk_in_shared_memory_kernel, {1, kThreads, 2 * (4 * std::int64_t{Bc} + 15)}, Q, K, V,
         O, static_cast<int>(Q.size()), static_cast<int>(K.size()), Bc, second_barrier);
}

}  // namespace flash_steps::test

// Chapter 02: the walks of io_counting.hpp on the device.
#include <algorithm>

#include "chapters/02_io_counting/io_counting_cuda.hpp"
#include "chapters/02_io_counting/shared_bytes.hpp"
#include "common/device/kernel.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// The on-chip memory of one block.
struct WalkMemory {
  __device__ WalkMemory(int Br, int Bc, int d, dynamic_shared smem = {})
      : d(d),
        Q(smem.take<float>(Br * d)),
        K(smem.take<float>(Bc * d)),
        V(smem.take<float>(Bc * d)),
        O(smem.take<float>(Br * d)) {}

  int d;
  shared<float> Q;     // (Br, d)
  shared<float> K, V;  // (Bc, d)
  shared<float> O;     // (Br, d)
};

// In the place of attention's arithmetic: O_ic += sum_j (Q_ic + K_jc + V_jc) over the key tile,
// a channel c a thread. Barriers stand before and after it.
__device__ void touch(const WalkMemory& tile, int rows, int cols) {
  const int d = tile.d;
  for (int x = static_cast<int>(threadIdx.x); x < d; x += static_cast<int>(blockDim.x)) {
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) sum += tile.K[c * d + x] + tile.V[c * d + x];
    for (int r = 0; r < rows; ++r) {
      tile.O[r * d + x] += static_cast<float>(cols) * tile.Q[r * d + x] + sum;
    }
  }
}

// One block: Br query rows.
__global__ void walk_q_outer_kernel(global<const float> Q,  // (Nq, d)
                                    global<const float> K,  // (Nk, d)
                                    global<const float> V,  // (Nk, d)
                                    global<float> O,        // (Nq, d)
                                    global<float> LSE,      // (Nq) if statistics
                                    bool statistics, std::int64_t Nq, std::int64_t Nk, int d,
                                    int Br, int Bc) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t q_start = std::int64_t{blockIdx.x} * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short
  const WalkMemory tile(Br, Bc, d);

  // [begin 02.walk-q-outer-cuda]
  for (int e = thread; e < rows * d; e += threads) {
    tile.Q[e] = Q[q_start * d + e];  // stays while all keys pass
    tile.O[e] = 0.0f;
  }
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {
    const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
    for (int e = thread; e < cols * d; e += threads) {
      tile.K[e] = K[k_start * d + e];
      tile.V[e] = V[k_start * d + e];
    }
    __syncthreads();  // the tiles are complete
    touch(tile, rows, cols);
    __syncthreads();  // K and V may be overwritten, O may be read
  }
  for (int e = thread; e < rows * d; e += threads) O[q_start * d + e] = tile.O[e];
  if (statistics) {
    const float LSE_of_zeros = logf(static_cast<float>(Nk));
    for (int r = thread; r < rows; r += threads) LSE[q_start + r] = LSE_of_zeros;
  }
  // [end]
}

// One block in all: every K/V tile, and every Q tile within it.
__global__ void walk_kv_outer_kernel(global<const float> Q,  // (Nq, d)
                                     global<const float> K,  // (Nk, d)
                                     global<const float> V,  // (Nk, d)
                                     global<float> O,        // (Nq, d)
                                     global<float> m,        // (Nq) if statistics
                                     global<float> l,        // (Nq) if statistics
                                     bool statistics, std::int64_t Nq, std::int64_t Nk, int d,
                                     int Br, int Bc) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const WalkMemory tile(Br, Bc, d);

  // [begin 02.walk-kv-outer-cuda]
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {
    const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
    for (int e = thread; e < cols * d; e += threads) {
      tile.K[e] = K[k_start * d + e];  // stay while all queries pass
      tile.V[e] = V[k_start * d + e];
    }
    for (std::int64_t q_start = 0; q_start < Nq; q_start += Br) {
      const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));
      for (int e = thread; e < rows * d; e += threads) {
        tile.Q[e] = Q[q_start * d + e];
        tile.O[e] = O[q_start * d + e];  // what the K/V tiles before this one left
      }
      __syncthreads();  // the tiles are complete
      touch(tile, rows, cols);
      __syncthreads();  // Q may be overwritten, O may be read
      for (int e = thread; e < rows * d; e += threads) O[q_start * d + e] = tile.O[e];
      for (int r = thread; statistics && r < rows; r += threads) {
        m[q_start + r] = fmaxf(m[q_start + r], 0.0f);
        l[q_start + r] += static_cast<float>(cols);
      }
    }
  }
  // [end]
}

std::int64_t walk_shared_bytes(Tiling tile, std::int64_t d) {
  const Tiling cut = countable(tile);
  const std::int64_t bytes = shared_bytes_for({cut.Br * d, cut.Bc * d, cut.Bc * d, cut.Br * d});
  require_shared_bytes(tiles_text(tile, d), bytes);
  return bytes;
}

void require_statistics(const char* name, const DeviceArray<float>& values, std::int64_t Nq) {
  require(values.size() == Nq || values.size() == 0,
          std::string(name) + " must have Nq = " + std::to_string(Nq) +
              " elements or none, found " + std::to_string(values.size()));
}

}  // namespace

void walk_q_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                       const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                       DeviceArray<float>& LSE, Tiling tile) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  require_statistics("LSE", LSE, Nq);
  const std::int64_t bytes = walk_shared_bytes(tile, d);
  if (Nq == 0) return;
  launch(walk_q_outer_kernel, {ceil_div(Nq, tile.Br), kThreads, bytes}, Q, K, V, O, LSE,
         LSE.size() > 0, Nq, Nk, static_cast<int>(d), static_cast<int>(tile.Br),
         static_cast<int>(tile.Bc));
}

void walk_kv_outer_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, DeviceMatrix<float>& O,
                        DeviceArray<float>& m, DeviceArray<float>& l, Tiling tile) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  require_statistics("m", m, Nq);
  require_statistics("l", l, Nq);
  require(m.size() == l.size(), "m and l go together");
  const std::int64_t bytes = walk_shared_bytes(tile, d);
  if (Nq == 0) return;
  launch(walk_kv_outer_kernel, {1, kThreads, bytes}, Q, K, V, O, m, l, m.size() > 0, Nq, Nk,
         static_cast<int>(d), static_cast<int>(tile.Br), static_cast<int>(tile.Bc));
}

}  // namespace flash_steps

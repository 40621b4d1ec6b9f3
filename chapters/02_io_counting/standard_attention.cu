// Chapter 02: standard attention on the device, a kernel to a pass. The equations are those of
// standard_attention.hpp. Q, K, V, S, P, O lie in global memory (HBM), sX in shared memory.
#include <algorithm>

#include "chapters/01_online_softmax/warp.cuh"
#include "chapters/02_io_counting/shared_bytes.hpp"
#include "chapters/02_io_counting/standard_attention_cuda.hpp"
#include "common/device/kernel.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block: the scores of Br query rows. One thread: every kThreads-th score of a tile.
__global__ void standard_scores_kernel(global<const float> Q,  // (Nq, d)
                                       global<const float> K,  // (Nk, d)
                                       global<float> S,        // (Nq, Nk)
                                       std::int64_t Nq, std::int64_t Nk, int d, int Br, int Bc,
                                       float scale) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t q_start = std::int64_t{blockIdx.x} * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short

  dynamic_shared smem;
  const shared<float> sQ = smem.take<float>(Br * d);  // (Br, d)
  const shared<float> sK = smem.take<float>(Bc * d);  // (Bc, d)

  // [begin 02.standard-scores-cuda]
  for (int e = thread; e < rows * d; e += threads) sQ[e] = Q[q_start * d + e];  // stays
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {
    const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
    for (int e = thread; e < cols * d; e += threads) sK[e] = K[k_start * d + e];
    __syncthreads();  // the tiles are complete

    for (int e = thread; e < rows * cols; e += threads) {
      const int r = e / cols, c = e % cols;
      float s = 0.0f;
      for (int x = 0; x < d; ++x) s += sQ[r * d + x] * sK[c * d + x];
      S[(q_start + r) * Nk + k_start + c] = scale * s;
    }
    __syncthreads();  // sK may be overwritten
  }
  // [end]
}

// One block: one row of S, on chip from its only read to its only write. One thread: every
// kThreads-th score.
__global__ void standard_softmax_kernel(global<float> S,  // (Nq, Nk), becomes P
                                        std::int64_t Nk) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarpSize, warp = thread / kWarpSize, warps = threads / kWarpSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * Nk;
  const int cols = static_cast<int>(Nk);

  dynamic_shared smem;
  const shared<float> row = smem.take<float>(Nk);        // (Nk)
  const shared<float> maxima = smem.take<float>(warps);  // (warps)
  const shared<float> sums = smem.take<float>(warps);    // (warps)

  // [begin 02.standard-softmax-cuda]
  // the maximum of this thread's scores, then of its warp's, then of the row
  float m = -INFINITY;
  for (int c = thread; c < cols; c += threads) {
    const float s = S[first + c];
    row[c] = s;
    m = fmaxf(m, s);
  }
  m = warp_max(m);
  if (lane == 0) maxima[warp] = m;
  __syncthreads();  // maxima are complete
  for (int w = 0; w < warps; ++w) m = fmaxf(m, maxima[w]);
  const float shift = m == -INFINITY ? 0.0f : m;  // (-inf) - (-inf) would be NaN

  // the sum, likewise
  float l = 0.0f;
  for (int c = thread; c < cols; c += threads) {
    const float p = expf(row[c] - shift);
    row[c] = p;
    l += p;
  }
  l = warp_sum(l);
  if (lane == 0) sums[warp] = l;
  __syncthreads();  // sums are complete
  l = 0.0f;
  for (int w = 0; w < warps; ++w) l += sums[w];

  // a row whose scores are all -inf has no weights
  for (int c = thread; c < cols; c += threads) S[first + c] = l == 0.0f ? 0.0f : row[c] / l;
  // [end]
}

// One block: Br rows of O. One thread: every kThreads-th entry of them.
__global__ void standard_values_kernel(global<const float> P,  // (Nq, Nk)
                                       global<const float> V,  // (Nk, d)
                                       global<float> O,        // (Nq, d)
                                       std::int64_t Nq, std::int64_t Nk, int d, int Br,
                                       int Bc) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t q_start = std::int64_t{blockIdx.x} * Br;
  const int rows = static_cast<int>(std::min<std::int64_t>(Br, Nq - q_start));  // may be short

  dynamic_shared smem;
  const shared<float> sP = smem.take<float>(Br * Bc);  // (rows, cols)
  const shared<float> sV = smem.take<float>(Bc * d);   // (Bc, d)
  const shared<float> sO = smem.take<float>(Br * d);   // (Br, d)
  const shared<float> weight = smem.take<float>(Br);   // (Br)  the row sums of P

  // [begin 02.standard-values-cuda]
  for (int e = thread; e < rows * d; e += threads) sO[e] = 0.0f;
  for (int r = thread; r < rows; r += threads) weight[r] = 0.0f;
  __syncthreads();  // O and the weights are 0
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {
    const int cols = static_cast<int>(std::min<std::int64_t>(Bc, Nk - k_start));
    for (int e = thread; e < rows * cols; e += threads) {
      sP[e] = P[(q_start + e / cols) * Nk + k_start + e % cols];
    }
    for (int e = thread; e < cols * d; e += threads) sV[e] = V[k_start * d + e];
    __syncthreads();  // the tiles are complete

    for (int e = thread; e < rows * d; e += threads) {
      const int r = e / d, x = e % d;
      float o = sO[e], w = 0.0f;
      for (int c = 0; c < cols; ++c) {
        const float p = sP[r * cols + c];
        o += p * sV[c * d + x];
        w += p;
      }
      sO[e] = o;
      if (x == 0) weight[r] += w;
    }
    __syncthreads();  // the tiles may be overwritten
  }
  // no key: 0, whatever V holds
  for (int e = thread; e < rows * d; e += threads) {
    O[q_start * d + e] = weight[e / d] == 0.0f ? 0.0f : sO[e];
  }
  // [end]
}

// What a block of the softmax needs for a row of Nk scores; throws if the device has less.
std::int64_t row_shared_bytes(std::int64_t Nk) {
  const std::int64_t warps = kThreads / kWarpSize, bytes = shared_bytes_for({Nk, warps, warps});
  require_shared_bytes("the " + std::to_string(Nk) + " scores of a row", bytes);
  return bytes;
}

}  // namespace

void standard_scores_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                          DeviceMatrix<float>& S, Tiling tile, float scale) {
  const std::int64_t Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(K), shape_of(Q));
  require_shape("S", shape_of(S), {Nq, Nk});
  require_tiling(tile);
  const Tiling cut = countable(tile);
  const std::int64_t bytes = shared_bytes_for({cut.Br * d, cut.Bc * d});
  require_shared_bytes(tiles_text(tile, d), bytes);
  if (Nq == 0) return;
  launch(standard_scores_kernel, {ceil_div(Nq, tile.Br), kThreads, bytes}, Q, K, S, Nq, Nk,
         static_cast<int>(d), static_cast<int>(tile.Br), static_cast<int>(tile.Bc), scale);
}

void standard_softmax_cuda(DeviceMatrix<float>& S) {
  const std::int64_t Nq = S.rows(), Nk = S.cols(), bytes = row_shared_bytes(Nk);
  if (Nq == 0 || Nk == 0) return;
  launch(standard_softmax_kernel, {Nq, kThreads, bytes}, S, Nk);
}

void standard_values_cuda(const DeviceMatrix<float>& P, const DeviceMatrix<float>& V,
                          DeviceMatrix<float>& O, Tiling tile) {
  const std::int64_t Nq = O.rows(), Nk = V.rows(), d = V.cols();
  require_attention_shapes(shape_of(O), shape_of(V), shape_of(V), shape_of(O));
  require_shape("P", shape_of(P), {Nq, Nk});
  require_tiling(tile);
  const Tiling cut = countable(tile);
  const std::int64_t bytes =
      shared_bytes_for({cut.Br * cut.Bc, cut.Bc * d, cut.Br * d, cut.Br});
  require_shared_bytes(tiles_text(tile, d), bytes);
  if (Nq == 0) return;
  launch(standard_values_kernel, {ceil_div(Nq, tile.Br), kThreads, bytes}, P, V, O, Nq, Nk,
         static_cast<int>(d), static_cast<int>(tile.Br), static_cast<int>(tile.Bc));
}

void standard_attention_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                             const DeviceMatrix<float>& V, DeviceMatrix<float>& O, Tiling tile,
                             std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const float s = resolve_scale<float>(scale, Q.cols());
  row_shared_bytes(K.rows());  // refused before S is allocated
  DeviceMatrix<float> S(Q.rows(), K.rows());
  standard_scores_cuda(Q, K, S, tile, s);
  standard_softmax_cuda(S);
  standard_values_cuda(S, V, O, tile);
}

}  // namespace flash_steps

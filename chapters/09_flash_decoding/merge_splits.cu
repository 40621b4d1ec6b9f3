// Chapter 09: the parts that splits leave become one result, on the device: the second kernel.
// The equations are those of merge_splits.hpp.
#include "chapters/09_flash_decoding/merge_splits.cuh"

#include <vector>

#include "chapters/09_flash_decoding/merge_splits_cuda.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// One block: one row.
__global__ void merge_sequential_kernel(global<const float> o_part,    // (splits * rows, d)
                                        global<const float> lse_part,  // (splits, rows)
                                        int splits, global<float> O,
                                        HeadsLayout O_at,     // [B, H, Nq, d]
                                        global<float> LSE) {  // (rows)
  const std::int64_t row = blockIdx.x, rows = gridDim.x;
  const shared<float> lses = dynamic_shared().take<float>(splits);
  merge_row(o_part, lse_part, splits, rows, row, static_cast<int>(O_at.d), lses,
            O + row_offset(O_at, row), LSE + row);
}

// One block: one row, whose parts are merged in pairs, in place: after the round with distance
// n, part s = 0, 2n, 4n, ... is the merged result of the parts s .. s + 2n - 1.
__global__ void merge_tree_kernel(global<float> o_part,          // (splits * rows, d)
                                  global<const float> lse_part,  // (splits, rows)
                                  int splits, global<float> O,
                                  HeadsLayout O_at,     // [B, H, Nq, d]
                                  global<float> LSE) {  // (rows)
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = static_cast<int>(O_at.d);
  const std::int64_t row = blockIdx.x, rows = gridDim.x;
  const shared<float> lses = dynamic_shared().take<float>(splits);
  for (int s = thread; s < splits; s += threads) lses[s] = lse_part[s * rows + row];
  __syncthreads();  // the LSEs of all parts are there

  // [begin 09.merge-tree-cuda]
  for (int n = 1; n < splits; n *= 2) {
    const int pairs = (splits - n + 2 * n - 1) / (2 * n);  // those with a second part
    for (int e = thread; e < pairs * d; e += threads) {
      const int s = e / d * 2 * n, x = e % d;
      const std::int64_t to = (s * rows + row) * d + x, from = ((s + n) * rows + row) * d + x;
      const float a = lses[s], b = lses[s + n];
      if (b == -INFINITY) continue;  // nothing to take in
      if (a == -INFINITY) {
        o_part[to] = o_part[from];
        continue;
      }
      const float m = fmaxf(a, b), w_a = expf(a - m), w_b = expf(b - m);
      o_part[to] = (w_a * o_part[to] + w_b * o_part[from]) / (w_a + w_b);
    }
    __syncthreads();  // the old LSEs have been read, the new o are there

    for (int s = thread * 2 * n; s + n < splits; s += threads * 2 * n) {
      lses[s] = merge_lse(lses[s], lses[s + n]);
    }
    __syncthreads();  // the new LSEs are there
  }
  // [end]

  const float lse = lses[0];
  for (int x = thread; x < d; x += threads) {
    O[row_offset(O_at, row) + x] = lse == -INFINITY ? 0.0f : o_part[row * d + x];
  }
  if (thread == 0) LSE[row] = lse;
}

void launch_sequential(DeviceSplitParts& parts, DeviceHeads<float>& O,
                       DeviceMatrix<float>& LSE) {
  const std::int64_t splits = parts.LSE.rows(), rows = parts.LSE.cols();
  launch(merge_sequential_kernel, {rows, kThreads, 4 * splits}, parts.O, parts.LSE,
         static_cast<int>(splits), O, O.layout(), LSE);
}

void launch_tree(DeviceSplitParts& parts, DeviceHeads<float>& O, DeviceMatrix<float>& LSE) {
  const std::int64_t splits = parts.LSE.rows(), rows = parts.LSE.cols();
  launch(merge_tree_kernel, {rows, kThreads, 4 * splits}, parts.O, parts.LSE,
         static_cast<int>(splits), O, O.layout(), LSE);
}

}  // namespace

DeviceSplitParts::DeviceSplitParts(std::int64_t splits, std::int64_t rows, std::int64_t d)
    : O(splits * rows, d),
      LSE(splits, rows),
      arrived(std::vector<std::uint32_t>(static_cast<std::size_t>(rows), 0u)) {}

void merge_splits_cuda(DeviceSplitParts& parts, DeviceHeads<float>& O, DeviceMatrix<float>& LSE,
                       Merge merge) {
  const std::int64_t splits = parts.LSE.rows(), rows = parts.LSE.cols();
  require_splits(splits);
  require_shape("LSE", shape_of(LSE), {O.B() * O.H(), O.N()});
  require_shape("the parts' LSE", shape_of(parts.LSE), {splits, O.B() * O.H() * O.N()});
  require_shape("the parts' O", shape_of(parts.O), {splits * rows, O.d()});
  if (rows == 0) return;
  if (merge == Merge::tree) return launch_tree(parts, O, LSE);
  launch_sequential(parts, O, LSE);
}

}  // namespace flash_steps

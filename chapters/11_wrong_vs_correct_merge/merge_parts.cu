// Chapter 11: merging the parts of a softmax on the device, by four rules. The equations and
// the marks [n] are those of merge_parts.hpp.
#include <algorithm>
#include <string>
#include <type_traits>

#include "chapters/01_online_softmax/softmax_state.cuh"
#include "chapters/11_wrong_vs_correct_merge/merge_part.cuh"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

// ---- ready parts

// One block: all of it, since the parts come one after another. One thread: a channel of o, and
// m and l, which all threads compute alike.
template <MergeRule rule>
__global__ void merge_parts_kernel(global<const float> m,  // (T)
                                   global<const float> l,  // (T)
                                   global<const float> o,  // (T, d)
                                   global<float> O,        // (d)
                                   global<float> state,    // (2)
                                   std::int64_t T, int d, float fixed) {
  const int c = static_cast<int>(threadIdx.x);

  // [begin 11.merge-parts-cuda]
  PartChannel sum;                        // [5]
  for (std::int64_t t = 0; t < T; ++t) {  // [6]
    merge_part<rule>(sum, m[t], l[t], o[t * d + c], fixed);
  }
  O[c] = nothing_merged(sum.m, sum.l) ? 0.0f : sum.o / sum.l;  // [12] no key at all: not 0/0
  // [end]
  if (c == 0) {
    state[0] = sum.m;
    state[1] = sum.l;
  }
}

template <MergeRule rule>
void launch_parts(const DeviceArray<float>& m, const DeviceArray<float>& l,
                  const DeviceMatrix<float>& o, DeviceArray<float>& O,
                  DeviceArray<float>& state, float fixed) {
  launch(merge_parts_kernel<rule>, {1, o.cols()}, m, l, o, O, state, o.rows(),
         static_cast<int>(o.cols()), fixed);
}

// ---- scores

constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kMaxScores = 128 * kMaxThreads;  // of a block

// One block of threads: all of it, one block of scores after the other. One thread: every
// blockDim.x-th score, so that neighbouring threads read neighbouring floats.
template <MergeRule rule>
__global__ void merge_scores_kernel(global<const float> x,  // (N)
                                    global<float> p,        // (N)
                                    global<float> state,    // (2)
                                    std::int64_t N, std::int64_t Bc, float fixed) {
  const std::int64_t thread = threadIdx.x, threads = blockDim.x;

  // [begin 11.merge-scores-cuda]
  PartChannel sum;
  for (std::int64_t start = 0; start < N; start += Bc) {
    const std::int64_t end = std::min(start + Bc, N);  // the last block may be short
    SoftmaxState<float> block;
    for (std::int64_t i = start + thread; i < end; i += threads) push(block, x[i]);
    block = block_merge(block);  // the same bits in all threads
    merge_part<rule>(sum, block.m, block.l, 0.0f, fixed);
    __syncthreads();  // block_merge may use its shared memory again
  }
  const bool nothing = nothing_merged(sum.m, sum.l);
  for (std::int64_t i = thread; i < N; i += threads) {
    p[i] = nothing ? 0.0f : expf(x[i] - sum.m) / sum.l;
  }
  // [end]
  if (thread == 0) {
    state[0] = sum.m;
    state[1] = sum.l;
  }
}

template <MergeRule rule>
void launch_scores(const DeviceArray<float>& x, DeviceArray<float>& p,
                   DeviceArray<float>& state, std::int64_t Bc, float fixed) {
  Bc = std::min(Bc, std::max<std::int64_t>(x.size(), 1));  // start + Bc must not overflow
  if (Bc > kMaxScores) {
    require(false, "a block of scores on the device may have " + std::to_string(kMaxScores) +
                       ", found Bc = " + std::to_string(Bc));
  }
  const std::int64_t threads = std::min(ceil_div(Bc, kWarpSize) * kWarpSize, kMaxThreads);
  launch(merge_scores_kernel<rule>, {1, threads}, x, p, state, x.size(), Bc, fixed);
}

// ---- the rule

// Calls run with the rule as a constant of the compiler.
template <class Run>
void with_rule(MergeRule rule, const Run& run) {
  switch (rule) {
    case MergeRule::correct:
      return run(std::integral_constant<MergeRule, MergeRule::correct>{});
    case MergeRule::stale_max:
      return run(std::integral_constant<MergeRule, MergeRule::stale_max>{});
    case MergeRule::no_rescale:
      return run(std::integral_constant<MergeRule, MergeRule::no_rescale>{});
    case MergeRule::fixed_max:
      return run(std::integral_constant<MergeRule, MergeRule::fixed_max>{});
  }
}

void require_state(std::int64_t size) {
  if (size != 2) require(false, "state must be [2], found [" + std::to_string(size) + "]");
}

}  // namespace

void merge_parts_cuda(const DeviceArray<float>& m, const DeviceArray<float>& l,
                      const DeviceMatrix<float>& o, DeviceArray<float>& O,
                      DeviceArray<float>& state, MergeRule rule, double fixed_max) {
  require_part_shapes(m.size(), l.size(), shape_of(o), O.size());
  require_state(state.size());
  const float fixed = resolve_fixed_max<float>(fixed_max);
  with_rule(rule, [&](auto r) { launch_parts<decltype(r)::value>(m, l, o, O, state, fixed); });
}

void merge_scores_cuda(const DeviceArray<float>& x, DeviceArray<float>& p,
                       DeviceArray<float>& state, std::int64_t Bc, MergeRule rule,
                       double fixed_max) {
  require_score_sizes(x.size(), p.size(), Bc);
  require(&p != &x, "p must not be x: the kernel counts on two arrays");
  require_state(state.size());
  const float fixed = resolve_fixed_max<float>(fixed_max);
  with_rule(rule, [&](auto r) { launch_scores<decltype(r)::value>(x, p, state, Bc, fixed); });
}

}  // namespace flash_steps

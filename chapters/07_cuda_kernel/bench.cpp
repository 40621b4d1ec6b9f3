// Times chapter 07: the plain kernels, and the ladder. Work is counted as two products, 4 * H *
// N * N * d operations, half of that when causal; exp is not counted. The backward pass counts
// five products (the plain kernels compute seven). The limit is the arithmetic: the units of
// an H200 do 67 TFLOP/s in float32: 132 multiprocessors, 128 multiply-adds a cycle each, at
// 1.98 GHz; BM_limit_multiply_add_cuda of docs/benchmarks measures it.
//
//   07_cuda_kernel_bench --benchmark_filter='rung:3/'               one rung
//   07_cuda_kernel_bench --benchmark_filter='rung.*N:4096/d:128/'   one size
#include "common/bench/bench.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"

namespace {

using namespace flash_steps;

void BM_batched_forward_cpu(benchmark::State& state, bool causal) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Heads in(H, H, N, N, d);
  HeadsArray<float> O(1, H, N, d);
  Matrix<float> LSE(H, N);
  time_cpu(state, [&] {
    batched_forward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, {64, 64},
                               causal);
  });
  count_flops(state, 2 * product_flops(H, N, d, causal));
  check_attention(state, O, in, 1e-4, {.causal = causal});
}

void BM_batched_backward_cpu(benchmark::State& state, bool causal) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Heads in(H, H, N, N, d);
  HeadsArray<float> O(1, H, N, d), dQ = O, dK = O, dV = O;
  const HeadsArray<float> dO = random_heads(H, N, d, 3);
  Matrix<float> LSE(H, N), delta(H, N);
  batched_forward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, {64, 64},
                             causal);
  time_cpu(state, [&] {
    batched_backward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, dO.view(),
                                delta, dQ.view(), dK.view(), dV.view(), {64, 64}, causal);
  });
  count_flops(state, 5 * product_flops(H, N, d, causal));
}

// forward(Q, K, V, O, LSE) for heads that share K/V heads in groups.
template <class Forward>
void time_forward(benchmark::State& state, bool causal, Index group, const Forward& forward) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Heads in(H, H / group, N, N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(1, H, N, d);
  DeviceMatrix<float> LSE(H, N);
  time_cuda(state, [&] { forward(Q, K, V, O, LSE); });
  count_flops(state, 2 * product_flops(H, N, d, causal));
  check_attention(state, to_host(O), in, 1e-4, {.causal = causal});
}

void BM_forward_rung_cuda(benchmark::State& state, bool causal, Index group) {
  time_forward(state, causal, group,
               [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
                 forward_rung(state.range(3), Q, K, V, O, LSE, causal);
               });
}

void BM_batched_forward_cuda(benchmark::State& state, bool causal) {
  const Tiling tile = default_tiling(state.range(2), device_limits().shared_bytes_per_block);
  time_forward(state, causal, 1,
               [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
                 batched_forward_cuda(Q, K, V, O, LSE, tile, causal);
               });
}

void BM_batched_backward_cuda(benchmark::State& state, bool causal) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Heads in(H, H, N, N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V),
             dO = to_device(random_heads(H, N, d, 3));
  DeviceHeads<float> O(1, H, N, d), dQ(1, H, N, d), dK(K.layout()), dV(V.layout());
  DeviceMatrix<float> LSE(H, N), delta(H, N);
  forward_rung(kRungs, Q, K, V, O, LSE, causal);
  const Tiling tile = default_backward_tiling(d, device_limits().shared_bytes_per_block);
  time_cuda(state, [&] {
    batched_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile, causal);
  });
  count_flops(state, 5 * product_flops(H, N, d, causal));
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"H", "N", "d"})->ArgsProduct({{1, 4}, {1024}, {64, 128}});
}
void plain_sizes(Benchmark* b) {
  b->ArgNames({"H", "N", "d"})->ArgsProduct({{1, 16}, {1024, 4096}, {64, 128}});
}
void rung_sizes(Benchmark* b) {
  b->ArgNames({"H", "N", "d", "rung"})
      ->ArgsProduct({{16}, {1024, 4096}, {64, 128, 256}, {1, 2, 3}})
      ->ArgsProduct({{16}, {512, 2048, 16384}, {64, 128}, {3}});
}

}  // namespace

int main(int argc, char** argv) {
  for (const bool causal : {false, true}) {
    const std::string mask = causal ? "causal" : "no_mask";
    add_cpu("BM_batched_forward_cpu/" + mask, BM_batched_forward_cpu, causal)->Apply(cpu_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_batched_forward_cuda/" + mask, BM_batched_forward_cuda, causal)
        ->Apply(plain_sizes);
    add_cuda("BM_batched_backward_cuda/" + mask, BM_batched_backward_cuda, causal)
        ->Apply(plain_sizes);
    add_cuda("BM_forward_rung_cuda/" + mask, BM_forward_rung_cuda, causal, 1)
        ->Apply(rung_sizes);
  }
  add_cpu("BM_batched_backward_cpu/no_mask", BM_batched_backward_cpu, false)->Apply(cpu_sizes);
  if (gpu_is_there()) {
    add_cuda("BM_forward_rung_cuda/causal_groups_of_4", BM_forward_rung_cuda, true, 4)
        ->ArgNames({"H", "N", "d", "rung"})
        ->Args({16, 4096, 128, 3});
  }
  return run_benchmarks(argc, argv);
}

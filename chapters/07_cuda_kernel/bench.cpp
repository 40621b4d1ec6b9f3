// Times chapter 07: the plain kernels, and the ladder. Work is counted as 4 * B * H * Nq * Nk *
// d operations (two products), half of that when causal; exp is not counted. The backward pass
// counts 10 in the place of 4 (five products; the plain kernels compute seven). The arithmetic
// units of an H200 do 67 TFLOP/s in float32: 132 multiprocessors, 128 multiply-adds a cycle
// each, at 1.98 GHz; "peak" is the share of that.
//
//   07_cuda_kernel_bench --benchmark_filter='BM_forward_rung/.*/rung:3/'     one rung
//   07_cuda_kernel_bench --benchmark_filter='BM_forward_rung.*N:4096/d:128'  one size
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

struct Batch {
  HeadsArray<float> Q, K, V;
};

HeadsArray<float> random_heads(Index B, Index H, Index N, Index d, std::uint64_t stream) {
  HeadsArray<float> heads(B, H, N, d);
  for (Index h = 0; h < B * H; ++h) {
    heads.head(h / H, h % H) =
        random_matrix<float>(N, d, static_cast<std::uint64_t>(h), stream);
  }
  return heads;
}

Batch random_batch(Index H, Index Hkv, Index N, Index d) {
  return {random_heads(1, H, N, d, 0), random_heads(1, Hkv, N, d, 1),
          random_heads(1, Hkv, N, d, 2)};
}

void count_flops(benchmark::State& state, double products, Index H, Index N, Index d,
                 bool causal) {
  constexpr double kPeak = 67e12;  // of an H200
  const double work = products * (causal ? 1 : 2) * static_cast<double>(H) *
                      static_cast<double>(N) * static_cast<double>(N) * static_cast<double>(d);
  state.counters["FLOP/s"] =
      benchmark::Counter(work, benchmark::Counter::kIsIterationInvariantRate);
  if (std::string(device_kind()) == "cuda") {
    state.counters["peak"] =
        benchmark::Counter(work / kPeak, benchmark::Counter::kIsIterationInvariantRate);
  }
}

// A wrong result is not worth timing: the last head's last rows against naive attention in
// float64.
bool is_right(const HeadsArray<float>& O, const Batch& in, bool causal) {
  const Index H = in.Q.H(), Hkv = in.K.H();
  const Matrix<double> Q = in.Q.head(0, H - 1).bottomRows(8).cast<double>();
  const auto expected =
      reference_attention(Q, in.K.head(0, Hkv - 1).cast<double>(),
                          in.V.head(0, Hkv - 1).cast<double>(), {.causal = causal});
  return (O.head(0, H - 1).bottomRows(8).cast<double>() - expected.O)
             .cwiseAbs()
             .maxCoeff<Eigen::PropagateNaN>() <= 1e-4;
}

void BM_batched_forward_cpu(benchmark::State& state, bool causal) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Batch in = random_batch(H, H, N, d);
  HeadsArray<float> O(1, H, N, d);
  Matrix<float> LSE(H, N);
  for (auto _ : state) {
    batched_forward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, {64, 64},
                               causal);
  }
  count_flops(state, 2, H, N, d, causal);
  if (!is_right(O, in, causal)) state.SkipWithError("wrong result");
}

void BM_batched_backward_cpu(benchmark::State& state, bool causal) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Batch in = random_batch(H, H, N, d);
  HeadsArray<float> O(1, H, N, d), dQ = O, dK = O, dV = O;
  const HeadsArray<float> dO = random_heads(1, H, N, d, 3);
  Matrix<float> LSE(H, N), delta(H, N);
  batched_forward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, {64, 64},
                             causal);
  for (auto _ : state) {
    batched_backward_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, dO.view(),
                                delta, dQ.view(), dK.view(), dV.view(), {64, 64}, causal);
  }
  count_flops(state, 5, H, N, d, causal);
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches, as many as take some milliseconds, after one that is not timed.
template <class Work>
void time_device(benchmark::State& state, const Work& work) {
  work();
  synchronize_device();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    work();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

bool no_device(benchmark::State& state) {
  if (!device_available()) state.SkipWithError("this build wants a GPU, and there is none");
  return !device_available();
}

// forward(Q, K, V, O, LSE) for heads that share K/V heads in groups.
template <class Forward>
void time_forward(benchmark::State& state, Index H, Index group, Index N, Index d, bool causal,
                  const Forward& forward) {
  if (no_device(state)) return;
  const Batch in = random_batch(H, H / group, N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(1, H, N, d);
  DeviceMatrix<float> LSE(H, N);
  time_device(state, [&] { forward(Q, K, V, O, LSE); });
  count_flops(state, 2, H, N, d, causal);
  if (!is_right(to_host(O), in, causal)) state.SkipWithError("wrong result");
}

void BM_forward_rung(benchmark::State& state, bool causal, Index group) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2), rung = state.range(3);
  time_forward(state, H, group, N, d, causal,
               [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
                 forward_rung(rung, Q, K, V, O, LSE, causal);
               });
}

void BM_batched_forward_cuda(benchmark::State& state, bool causal, Index group) {
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Tiling tile =
      default_tiling(d, device_available() ? device_limits().shared_bytes_per_block : 232448);
  time_forward(state, H, group, N, d, causal,
               [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
                 batched_forward_cuda(Q, K, V, O, LSE, tile, causal);
               });
}

void BM_batched_backward_cuda(benchmark::State& state, bool causal, Index group) {
  if (no_device(state)) return;
  const Index H = state.range(0), N = state.range(1), d = state.range(2);
  const Batch in = random_batch(H, H / group, N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V),
             dO = to_device(random_heads(1, H, N, d, 3));
  DeviceHeads<float> O(1, H, N, d), dQ(1, H, N, d), dK(K.layout()), dV(V.layout());
  DeviceMatrix<float> LSE(H, N), delta(H, N);
  forward_rung(kRungs, Q, K, V, O, LSE, causal);
  const Tiling tile = default_backward_tiling(d, device_limits().shared_bytes_per_block);
  time_device(state, [&] {
    batched_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile, causal);
  });
  count_flops(state, 5, H, N, d, causal);
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "N", "d"})
      ->ArgsProduct({{1, 4}, {1024}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_batched_forward_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_batched_forward_cpu, causal, true)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_batched_backward_cpu, no_mask, false)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in milliseconds.
bool on_gpu() { return std::string(device_kind()) == "cuda"; }

void rung_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "N", "d", "rung"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (on_gpu()) {
    b->ArgsProduct({{16}, {1024, 4096}, {64, 128, 256}, {1, 2, 3}});
    b->ArgsProduct({{16}, {512, 2048, 16384}, {64, 128}, {3}});
  } else {
    b->ArgsProduct({{2}, {256}, {64}, {1, 2, 3}});
  }
}
BENCHMARK_CAPTURE(BM_forward_rung, no_mask, false, 1)->Apply(rung_grid);
BENCHMARK_CAPTURE(BM_forward_rung, causal, true, 1)->Apply(rung_grid);
BENCHMARK_CAPTURE(BM_forward_rung, causal_groups_of_4, true, 4)->Apply([](auto* b) {
  b->ArgNames({"H", "N", "d", "rung"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Args({on_gpu() ? 16 : 4, on_gpu() ? 4096 : 128, on_gpu() ? 128 : 64, 3});
});

void plain_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (on_gpu()) {
    b->ArgsProduct({{1, 16}, {1024, 4096}, {64, 128}});
  } else {
    b->Args({2, 256, 64});
  }
}
BENCHMARK_CAPTURE(BM_batched_forward_cuda, no_mask, false, 1)->Apply(plain_grid);
BENCHMARK_CAPTURE(BM_batched_forward_cuda, causal, true, 1)->Apply(plain_grid);
BENCHMARK_CAPTURE(BM_batched_backward_cuda, no_mask, false, 1)->Apply(plain_grid);
BENCHMARK_CAPTURE(BM_batched_backward_cuda, causal, true, 1)->Apply(plain_grid);

}  // namespace

BENCHMARK_MAIN();

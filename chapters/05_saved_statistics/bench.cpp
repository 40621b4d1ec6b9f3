// Times chapter 05 beside chapter 04: what it costs to keep m, l and LSE. Work is counted as
// 4 * N * N * d operations (two products), half of that when causal; exp is not counted.
#include <benchmark/benchmark.h>

#include <chrono>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

struct Head {
  Matrix<float> Q, K, V;
};

Head random_head(Index N, Index d) {
  return {random_matrix<float>(N, d, 0, 0), random_matrix<float>(N, d, 0, 1),
          random_matrix<float>(N, d, 0, 2)};
}

void count_flops(benchmark::State& state, bool causal) {
  const double N = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["FLOP/s"] = benchmark::Counter((causal ? 2 : 4) * N * N * d,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

// A wrong result is not worth timing: the last rows of LSE against naive attention in float64.
bool is_right(const Vector<float>& LSE, const Head& head, bool causal) {
  const Matrix<double> Q = head.Q.bottomRows(8).cast<double>();
  const auto expected =
      reference_attention(Q, head.K.cast<double>(), head.V.cast<double>(), {.causal = causal});
  return (LSE.tail(8).cast<double>() - expected.LSE)
             .cwiseAbs()
             .maxCoeff<Eigen::PropagateNaN>() <= 1e-4;
}

void BM_saved_forward_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  Matrix<float> O(N, d);
  Vector<float> m(N), l(N), LSE(N);
  for (auto _ : state) {
    saved_forward_cpu<float>(head.Q, head.K, head.V, O, m, l, LSE, {64, 64}, causal);
  }
  count_flops(state, causal);
  if (!is_right(LSE, head, causal)) state.SkipWithError("wrong result");
}

// Chapter 04, which keeps nothing.
void BM_causal_forward_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  Matrix<float> O(N, d);
  for (auto _ : state) {
    causal_forward_cpu<float>(head.Q, head.K, head.V, O, {64, 64}, causal);
  }
  count_flops(state, causal);
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
template <class Forward>
void time_device(benchmark::State& state, Forward&& forward) {
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    forward();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

bool no_device(benchmark::State& state) {
  if (!device_available()) state.SkipWithError("this build wants a GPU, and there is none");
  return !device_available();
}

void BM_saved_forward_cuda(benchmark::State& state, bool causal) {
  if (no_device(state)) return;
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> m(N), l(N), LSE(N);
  const Tiling tile = default_tiling(d, device_limits().shared_bytes_per_block);
  time_device(state, [&] { saved_forward_cuda(Q, K, V, O, m, l, LSE, tile, causal); });
  count_flops(state, causal);
  if (!is_right(to_host(LSE), head, causal)) state.SkipWithError("wrong result");
}

void BM_causal_forward_cuda(benchmark::State& state, bool causal) {
  if (no_device(state)) return;
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(N, d);
  const Tiling tile = default_tiling(d, device_limits().shared_bytes_per_block);
  time_device(state, [&] { causal_forward_cuda(Q, K, V, O, tile, causal); });
  count_flops(state, causal);
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})
      ->ArgsProduct({{1024, 4096}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_causal_forward_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_saved_forward_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cpu, causal, true)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_saved_forward_cpu, causal, true)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in milliseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (std::string(device_kind()) == "cuda") {
    b->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
  } else {
    b->Args({512, 64});
  }
}
BENCHMARK_CAPTURE(BM_causal_forward_cuda, no_mask, false)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_saved_forward_cuda, no_mask, false)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cuda, causal, true)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_saved_forward_cuda, causal, true)->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

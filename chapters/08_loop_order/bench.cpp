// Times chapter 08: the queries outside, and the keys outside, normalised once and at every
// tile. Work is counted as 4 * N * N * d operations (two products), half of that when causal;
// exp is not counted. `elements` is what the order moves, by the formula.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/q_outer.hpp"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/ceil_div.hpp"
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

// Each order keeps its large tile: q_outer 128 queries, kv_outer 128 keys, the other has 64. At
// d = 128 that fits a Hopper's shared memory, and half of each a smaller GPU's.
Tiling tile_of(LoopOrder order) {
  const std::int64_t B =
      device_available() && device_limits().shared_bytes_per_block < 232448 ? 32 : 64;
  return order == LoopOrder::q_outer ? Tiling{2 * B, B} : Tiling{B, 2 * B};
}

void count(benchmark::State& state, LoopOrder order, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const double flops = (causal ? 2.0 : 4.0) * static_cast<double>(N * N * d);
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["elements"] =
      static_cast<double>(predict_loop_order(order, N, N, d, tile_of(order), causal).total());
}

// A wrong result is not worth timing: the last rows of O against naive attention in float64.
void check(benchmark::State& state, const Matrix<float>& O, const Head& head, bool causal) {
  const Matrix<double> Q = head.Q.bottomRows(8).cast<double>();
  const auto expected =
      reference_attention(Q, head.K.cast<double>(), head.V.cast<double>(), {.causal = causal});
  const double error =
      (O.bottomRows(8).cast<double>() - expected.O).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
  if (!(error <= 1e-5)) state.SkipWithError("wrong result");
}

void BM_q_outer_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  Matrix<float> O(N, d);
  Vector<float> LSE(N);
  for (auto _ : state) {
    q_outer_cpu<float>(head.Q, head.K, head.V, O, LSE, tile_of(LoopOrder::q_outer), causal);
  }
  count(state, LoopOrder::q_outer, causal);
  check(state, O, head, causal);
}

void BM_kv_outer_cpu(benchmark::State& state, Normalise when, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  Matrix<float> O(N, d);
  Vector<float> m(N), l(N);
  for (auto _ : state) {
    kv_outer_cpu<float>(head.Q, head.K, head.V, O, m, l, tile_of(LoopOrder::kv_outer), causal,
                        {}, when);
  }
  count(state, LoopOrder::kv_outer, causal);
  check(state, O, head, causal);
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
template <class Launch>
void time_device(benchmark::State& state, const Launch& launch) {
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

bool no_device(benchmark::State& state) {
  if (!device_available()) state.SkipWithError("this build wants a GPU, and there is none");
  return !device_available();
}

void BM_q_outer_cuda(benchmark::State& state, bool causal) {
  if (no_device(state)) return;
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> LSE(N);
  time_device(state,
              [&] { q_outer_cuda(Q, K, V, O, LSE, tile_of(LoopOrder::q_outer), causal); });
  count(state, LoopOrder::q_outer, causal);
  check(state, to_host(O), head, causal);
}

void BM_kv_outer_cuda(benchmark::State& state, Normalise when, bool causal) {
  if (no_device(state)) return;
  const Index N = state.range(0), d = state.range(1);
  const Head head = random_head(N, d);
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  const Tiling tile = tile_of(LoopOrder::kv_outer);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> m(N), l(N);
  DeviceArray<unsigned> turns(1 + ceil_div(N, tile.Br));
  time_device(state, [&] { kv_outer_cuda(Q, K, V, O, m, l, turns, tile, causal, {}, when); });
  count(state, LoopOrder::kv_outer, causal);
  check(state, to_host(O), head, causal);
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})
      ->ArgsProduct({{1024, 4096}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_q_outer_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cpu, once, Normalise::once, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cpu, every_tile, Normalise::every_tile, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_q_outer_cpu, causal, true)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cpu, once_causal, Normalise::once, true)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in milliseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (std::string(device_kind()) == "cuda") {
    b->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
  } else {
    b->Args({512, 64});
  }
}
BENCHMARK_CAPTURE(BM_q_outer_cuda, no_mask, false)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cuda, once, Normalise::once, false)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cuda, every_tile, Normalise::every_tile, false)
    ->Apply(device_grid);
BENCHMARK_CAPTURE(BM_q_outer_cuda, causal, true)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_kv_outer_cuda, once_causal, Normalise::once, true)->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

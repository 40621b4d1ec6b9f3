// Times chapter 02: counted standard attention and walks on the CPU; on a GPU the three kernels
// of standard attention and the walks. `bytes` is what the formulas say that each moves.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "chapters/02_io_counting/io_counting.hpp"
#include "chapters/02_io_counting/io_counting_cuda.hpp"
#include "chapters/02_io_counting/predict.hpp"
#include "chapters/02_io_counting/standard_attention.hpp"
#include "chapters/02_io_counting/standard_attention_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

constexpr Tiling kTile{.Br = 64, .Bc = 64};

struct Head {
  Matrix<float> Q, K, V, O;
  Vector<float> m, l;
  Head(Index N, Index d)
      : Q(random_matrix<float>(N, d, 0, 0)),
        K(random_matrix<float>(N, d, 0, 1)),
        V(random_matrix<float>(N, d, 0, 2)),
        O(Matrix<float>::Zero(N, d)),
        m(Vector<float>::Constant(N, -kInf<float>)),
        l(Vector<float>::Zero(N)) {}
};

void set_bytes(benchmark::State& state, const Counts& counts) {
  state.counters["bytes"] = benchmark::Counter(4.0 * static_cast<double>(counts.total()),
                                               benchmark::Counter::kIsIterationInvariantRate,
                                               benchmark::Counter::OneK::kIs1000);
}

// ---- CPU
// ---------------------------------------------------------------------------------------

template <class Run>
void time_cpu(benchmark::State& state, const Counts& predicted, const Run& run) {
  if (!(run() == predicted)) return state.SkipWithError("the counts differ from the formula");
  for (auto _ : state) run();
  set_bytes(state, predicted);
}

void BM_standard_attention_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  Head h(N, d);
  time_cpu(state, predict_standard(N, N, d, kTile),
           [&] { return standard_attention_cpu<float>(h.Q, h.K, h.V, h.O, kTile); });
}
void BM_walk_q_outer_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  Head h(N, d);
  time_cpu(state, predict_q_outer(N, N, d, kTile),
           [&] { return walk_q_outer_cpu(h.Q, h.K, h.V, h.O, h.l, kTile); });
}
void BM_walk_kv_outer_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  Head h(N, d);
  time_cpu(state, predict_kv_outer(N, N, d, kTile),
           [&] { return walk_kv_outer_cpu(h.Q, h.K, h.V, h.O, h.m, h.l, kTile); });
}

// ---- GPU
// ---------------------------------------------------------------------------------------

struct DeviceHead {
  DeviceMatrix<float> Q, K, V, O;
  DeviceArray<float> m, l;
  explicit DeviceHead(const Head& h)
      : Q(to_device(h.Q)),
        K(to_device(h.K)),
        V(to_device(h.V)),
        O(to_device(h.O)),
        m(to_device(h.m)),
        l(to_device(h.l)) {}
};

// Warm: what a run finds in the L2 cache is what the run before it left there.
template <class Run>
void time_device(benchmark::State& state, const Counts& predicted, const Run& run) {
  run();
  synchronize_device();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  set_bytes(state, predicted);
}

// One pass of standard attention moves its part of predict_standard.
void BM_standard_scores_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), Tr = (N + kTile.Br - 1) / kTile.Br;
  DeviceHead h{Head(N, d)};
  DeviceMatrix<float> S(N, N);
  time_device(state, {.reads = N * d + Tr * N * d, .writes = N * N},
              [&] { standard_scores_cuda(h.Q, h.K, S, kTile, 0.125f); });
}
void BM_standard_softmax_cuda(benchmark::State& state) {
  const Index N = state.range(0);
  DeviceMatrix<float> S = to_device(random_matrix<float>(N, N, 0, 3));
  time_device(state, {.reads = N * N, .writes = N * N}, [&] { standard_softmax_cuda(S); });
}
void BM_standard_values_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), Tr = (N + kTile.Br - 1) / kTile.Br;
  DeviceHead h{Head(N, d)};
  const DeviceMatrix<float> P = to_device(random_matrix<float>(N, N, 0, 3));
  time_device(state, {.reads = N * N + Tr * N * d, .writes = N * d},
              [&] { standard_values_cuda(P, h.V, h.O, kTile); });
}
void BM_standard_attention_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  DeviceHead h{Head(N, d)};
  time_device(state, predict_standard(N, N, d, kTile),
              [&] { standard_attention_cuda(h.Q, h.K, h.V, h.O, kTile); });
}
void BM_walk_q_outer_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  DeviceHead h{Head(N, d)};
  time_device(state, predict_q_outer(N, N, d, kTile),
              [&] { walk_q_outer_cuda(h.Q, h.K, h.V, h.O, h.l, kTile); });
}
void BM_walk_kv_outer_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  DeviceHead h{Head(N, d)};
  time_device(state, predict_kv_outer(N, N, d, kTile),
              [&] { walk_kv_outer_cuda(h.Q, h.K, h.V, h.O, h.m, h.l, kTile); });
}

void register_all() {
  const auto add = [](const char* name, void (*body)(benchmark::State&)) {
    return benchmark::RegisterBenchmark(name, body)->ArgNames({"N", "d"});
  };
  add("BM_standard_attention_cpu", BM_standard_attention_cpu)
      ->ArgsProduct({{256, 1024, 4096}, {64, 128}})
      ->UseRealTime();
  add("BM_walk_q_outer_cpu", BM_walk_q_outer_cpu)
      ->ArgsProduct({{256, 1024, 4096}, {64, 128}})
      ->UseRealTime();
  add("BM_walk_kv_outer_cpu", BM_walk_kv_outer_cpu)
      ->ArgsProduct({{256, 1024, 4096}, {64, 128}})
      ->UseRealTime();

  // the simulator's time says nothing about a GPU's
  if (device_kind() != std::string("cuda") || !device_available()) return;
  const std::pair<const char*, void (*)(benchmark::State&)> on_device[] = {
      {"BM_standard_scores_cuda", BM_standard_scores_cuda},
      {"BM_standard_softmax_cuda", BM_standard_softmax_cuda},
      {"BM_standard_values_cuda", BM_standard_values_cuda},
      {"BM_standard_attention_cuda", BM_standard_attention_cuda},
      {"BM_walk_q_outer_cuda", BM_walk_q_outer_cuda},
      {"BM_walk_kv_outer_cuda", BM_walk_kv_outer_cuda}};
  for (const auto& [name, body] : on_device) {
    add(name, body)->ArgsProduct({{1024, 4096, 16384}, {64, 128}})->UseManualTime();
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

// Times chapter 04: the causal walk that skips, the one that masks everything, and no mask.
// Work is counted as 4 * N * N * d operations (two products), half of that when causal, whether
// or not the walk does more; exp is not counted.
#include <benchmark/benchmark.h>

#include <chrono>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
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

void count(benchmark::State& state, Tiling tile, bool causal, Visit visit) {
  const double N = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["FLOP/s"] = benchmark::Counter((causal ? 2 : 4) * N * N * d,
                                                benchmark::Counter::kIsIterationInvariantRate);
  const TileCounts counts = count_tiles(state.range(0), state.range(0), tile, causal);
  state.counters["tiles"] = static_cast<double>(
      counts.full + counts.partial + (visit == Visit::all_tiles ? counts.hidden : 0));
}

// A wrong result is not worth timing: the first and the last rows against naive attention in
// float64.
bool is_right(const Matrix<float>& O, const Head& head, bool causal) {
  const Index N = O.rows();
  const Matrix<double> Q = head.Q.cast<double>(), K = head.K.cast<double>(),
                       V = head.V.cast<double>();
  const auto first = reference_attention(Q.topRows(8), K.topRows(causal ? 8 : N),
                                         V.topRows(causal ? 8 : N), {.causal = causal}),
             last = reference_attention(Q.bottomRows(8), K, V, {.causal = causal});
  const auto near = [](const Matrix<float>& actual, const Matrix<double>& expected) {
    return (actual.cast<double>() - expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() <=
           1e-5;
  };
  return near(O.topRows(8), first.O) && near(O.bottomRows(8), last.O);
}

void BM_causal_forward_cpu(benchmark::State& state, bool causal, Visit visit) {
  const Head head = random_head(state.range(0), state.range(1));
  const Tiling tile{.Br = 64, .Bc = 64};
  Matrix<float> O(head.Q.rows(), head.Q.cols());
  for (auto _ : state) {
    causal_forward_cpu<float>(head.Q, head.K, head.V, O, tile, causal, {}, visit);
  }
  count(state, tile, causal, visit);
  if (!is_right(O, head, causal)) state.SkipWithError("wrong result");
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
void BM_causal_forward_cuda(benchmark::State& state, bool causal, Visit visit) {
  const Head head = random_head(state.range(0), state.range(1));
  if (!device_available()) {
    state.SkipWithError("this build wants a GPU, and there is none");
    return;
  }
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(head.Q.rows(), head.Q.cols());
  const Tiling tile = default_tiling(state.range(1), device_limits().shared_bytes_per_block);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    causal_forward_cuda(Q, K, V, O, tile, causal, {}, visit);
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  count(state, tile, causal, visit);
  if (!is_right(to_host(O), head, causal)) state.SkipWithError("wrong result");
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})
      ->ArgsProduct({{512, 1024, 2048, 4096}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_causal_forward_cpu, no_mask, false, Visit::skip_hidden)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cpu, mask_all, true, Visit::all_tiles)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cpu, skip, true, Visit::skip_hidden)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in milliseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  const bool gpu = std::string(device_kind()) == "cuda";
  b->ArgNames({"N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (gpu) {
    b->ArgsProduct({{1024, 4096, 16384, 65536}, {64, 128}});
  } else {
    b->Args({512, 64});
  }
}
BENCHMARK_CAPTURE(BM_causal_forward_cuda, no_mask, false, Visit::skip_hidden)
    ->Apply(device_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cuda, mask_all, true, Visit::all_tiles)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_causal_forward_cuda, skip, true, Visit::skip_hidden)->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

// Times chapter 03 on the CPU, beside the tile products alone in Eigen: what is left is the
// softmax.
#include <benchmark/benchmark.h>

#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

// Two products of 2 * N * N * d operations each; exp is not counted.
double flops(double N, double d) { return 4.0 * N * N * d; }

void BM_tiled_forward_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  const auto Q = random_matrix<float>(N, d, 0, 0), K = random_matrix<float>(N, d, 0, 1),
             V = random_matrix<float>(N, d, 0, 2);
  Matrix<float> O(N, d);
  for (auto _ : state) tiled_forward_cpu<float>(Q, K, V, O, {.Br = 64, .Bc = 64});
  state.counters["FLOP/s"] =
      benchmark::Counter(flops(static_cast<double>(N), static_cast<double>(d)),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_tiled_forward_cpu)
    ->ArgNames({"N", "d"})
    ->ArgsProduct({{256, 1024, 4096}, {64, 128}})
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();

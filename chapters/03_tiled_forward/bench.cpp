// Times chapter 03. On the CPU beside its tile products alone, in Eigen and equally parallel:
// the rest is the softmax. Work is counted as 4 * N * N * d operations (two products); exp is
// not counted.
#include <benchmark/benchmark.h>

#include <chrono>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"
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

void count_flops(benchmark::State& state) {
  const double N = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["FLOP/s"] =
      benchmark::Counter(4 * N * N * d, benchmark::Counter::kIsIterationInvariantRate);
}

// A wrong result is not worth timing: the first rows against naive attention in float64.
bool is_right(const Matrix<float>& O, const Head& head) {
  const Matrix<double> Q = head.Q.topRows(8).cast<double>();
  const auto expected = reference_attention(Q, head.K.cast<double>(), head.V.cast<double>());
  return (O.topRows(8).cast<double>() - expected.O)
             .cwiseAbs()
             .maxCoeff<Eigen::PropagateNaN>() <= 1e-5;
}

void BM_tiled_forward_cpu(benchmark::State& state) {
  const Head head = random_head(state.range(0), state.range(1));
  const Tiling tile{.Br = state.range(2), .Bc = state.range(3)};
  Matrix<float> O(head.Q.rows(), head.Q.cols());
  for (auto _ : state) tiled_forward_cpu<float>(head.Q, head.K, head.V, O, tile);
  count_flops(state);
  if (!is_right(O, head)) state.SkipWithError("wrong result");
}

// S = Qi Kj^T and O += S Vj for all tiles, and nothing else.
void BM_tile_products_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), Br = state.range(2), Bc = state.range(3);
  const Head head = random_head(N, d);
  Matrix<float> O(N, d);
  for (auto _ : state) {
#pragma omp parallel for schedule(dynamic)
    for (Index q = 0; q < N; q += Br) {
      Matrix<float> S, Oi = Matrix<float>::Zero(std::min(Br, N - q), d);
      for (Index k = 0; k < N; k += Bc) {
        const Index cols = std::min(Bc, N - k);
        S.noalias() = head.Q.middleRows(q, Oi.rows()) * head.K.middleRows(k, cols).transpose();
        Oi.noalias() += S * head.V.middleRows(k, cols);
      }
      O.middleRows(q, Oi.rows()) = Oi;
    }
    benchmark::DoNotOptimize(O.data());
  }
  count_flops(state);
}

void grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d", "Br", "Bc"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const std::int64_t N : {1024, 4096}) {
    for (const std::int64_t d : {64, 128}) {
      b->Args({N, d, 64, 64});
      b->Args({N, d, 64, 256});
    }
  }
}
BENCHMARK(BM_tiled_forward_cpu)->Apply(grid);
BENCHMARK(BM_tile_products_cpu)->Apply(grid);

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
void BM_tiled_forward_cuda(benchmark::State& state) {
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
    tiled_forward_cuda(Q, K, V, O, tile);
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  count_flops(state);
  if (!is_right(to_host(O), head)) state.SkipWithError("wrong result");
}
BENCHMARK(BM_tiled_forward_cuda)
    ->ArgNames({"N", "d"})
    ->ArgsProduct({{1024}, {64, 128}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();

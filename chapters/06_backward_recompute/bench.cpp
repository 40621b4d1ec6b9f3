// Times chapter 06: on the CPU beside the forward pass of chapter 05 and beside the five tile
// products alone, in Eigen and equally parallel; on the device in both forms. Work is counted
// as 10 * N * N * d operations (five products; forward 4, two products), half of that when
// causal; exp is not counted, nor what two_passes computes a second time.
#include <benchmark/benchmark.h>

#include <chrono>

#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_traffic.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

struct Head {
  Head(Index N, Index d)
      : Q(random_matrix<float>(N, d, 0, 0)),
        K(random_matrix<float>(N, d, 0, 1)),
        V(random_matrix<float>(N, d, 0, 2)),
        dO(random_matrix<float>(N, d, 0, 3)),
        O(N, d),
        m(N),
        l(N),
        LSE(N) {}
  void forward(bool causal) {
    saved_forward_cpu<float>(Q, K, V, O, m, l, LSE, {64, 64}, causal);
  }
  Matrix<float> Q, K, V, dO, O;
  Vector<float> m, l, LSE;
};

void count_flops(benchmark::State& state, bool causal, double products = 5) {
  const double N = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["FLOP/s"] = benchmark::Counter((causal ? 1 : 2) * products * N * N * d,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

// A wrong result is not worth timing: the last rows of dQ against naive gradients in float64,
// and the sum of dV over all keys, which is that of dO over all queries.
bool is_right(const Matrix<float>& dQ, const Matrix<float>& dV, const Head& head, bool causal) {
  const Matrix<double> Q = head.Q.bottomRows(8).cast<double>(),
                       dO = head.dO.bottomRows(8).cast<double>();
  const auto expected = reference_backward(Q, head.K.cast<double>(), head.V.cast<double>(), dO,
                                           {.causal = causal});
  const auto largest = [](const auto& x) {
    return x.cwiseAbs().template maxCoeff<Eigen::PropagateNaN>();
  };
  return largest((dQ.bottomRows(8).cast<double>() - expected.dQ).eval()) <= 1e-4 &&
         largest((dV.colwise().sum() - head.dO.colwise().sum()).eval()) <= 1e-1;
}

void BM_backward_recompute_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  Head head(N, d);
  head.forward(causal);
  Matrix<float> dQ(N, d), dK(N, d), dV(N, d);
  Vector<float> delta(N);
  for (auto _ : state) {
    backward_recompute_cpu<float>(head.Q, head.K, head.V, head.O, head.m, head.l, head.dO,
                                  delta, dQ, dK, dV, {64, 64}, causal);
  }
  count_flops(state, causal);
  if (!is_right(dQ, dV, head, causal)) state.SkipWithError("wrong result");
}

void BM_saved_forward_cpu(benchmark::State& state, bool causal) {
  Head head(state.range(0), state.range(1));
  for (auto _ : state) head.forward(causal);
  count_flops(state, causal, 2);
}

// The five products of all pairs of tiles, without a mask, and nothing else.
void BM_backward_products_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), B = 64;
  const Head head(N, d);
  Matrix<float> dQ = Matrix<float>::Zero(N, d), dK = dQ, dV = dQ;
  for (auto _ : state) {
#pragma omp parallel for schedule(dynamic)
    for (Index k = 0; k < N; k += B) {
      Matrix<float> P, dS, dQi = Matrix<float>::Zero(B, d);
      for (Index q = 0; q < N; q += B) {
        P.noalias() = head.Q.middleRows(q, B) * head.K.middleRows(k, B).transpose();
        dS.noalias() = head.dO.middleRows(q, B) * head.V.middleRows(k, B).transpose();
        dV.middleRows(k, B).noalias() += P.transpose() * head.dO.middleRows(q, B);
        dQi.noalias() += dS * head.K.middleRows(k, B);
        dK.middleRows(k, B).noalias() += dS.transpose() * head.Q.middleRows(q, B);
      }
      dQ.middleRows(k, B) = dQi;
    }
    benchmark::DoNotOptimize(dQ.data());
  }
  count_flops(state, false);
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
void BM_backward_recompute_cuda(benchmark::State& state, BackwardForm form, bool causal) {
  if (!device_available()) {
    state.SkipWithError("this build wants a GPU, and there is none");
    return;
  }
  const Index N = state.range(0), d = state.range(1);
  const Head head(N, d);
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V),
             dO = to_device(head.dO);
  DeviceMatrix<float> O(N, d), dQ(N, d), dK(N, d), dV(N, d);
  DeviceArray<float> m(N), l(N), LSE(N), delta(N);
  const Tiling tile = default_backward_tiling(d, device_limits().shared_bytes_per_block);
  saved_forward_cuda(Q, K, V, O, m, l, LSE, {32, 32}, causal);
  synchronize_device();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    backward_recompute_cuda(Q, K, V, O, m, l, dO, delta, dQ, dK, dV, tile, causal, {}, nullptr,
                            form);
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  count_flops(state, causal);
  const auto counts = form == BackwardForm::two_passes
                          ? predict_two_passes(N, N, d, tile, causal)
                          : predict_atomic_dQ(N, N, d, tile, causal);
  state.counters["bytes"] = benchmark::Counter(4.0 * static_cast<double>(counts.matrices()));
  if (!is_right(to_host(dQ), to_host(dV), head, causal)) state.SkipWithError("wrong result");
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})
      ->ArgsProduct({{1024, 4096}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_saved_forward_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_backward_recompute_cpu, no_mask, false)->Apply(cpu_grid);
BENCHMARK(BM_backward_products_cpu)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_saved_forward_cpu, causal, true)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_backward_recompute_cpu, causal, true)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in milliseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (std::string(device_kind()) == "cuda") {
    b->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
  } else {
    b->Args({256, 64});
  }
}
BENCHMARK_CAPTURE(BM_backward_recompute_cuda, two_passes, BackwardForm::two_passes, false)
    ->Apply(device_grid);
BENCHMARK_CAPTURE(BM_backward_recompute_cuda, atomic_dQ, BackwardForm::atomic_dQ, false)
    ->Apply(device_grid);
BENCHMARK_CAPTURE(BM_backward_recompute_cuda, two_passes_causal, BackwardForm::two_passes, true)
    ->Apply(device_grid);
BENCHMARK_CAPTURE(BM_backward_recompute_cuda, atomic_dQ_causal, BackwardForm::atomic_dQ, true)
    ->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

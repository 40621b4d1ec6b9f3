// What the benchmarks of all chapters share: their inputs, how a run is timed, what is counted,
// and that a GPU's benchmarks are there only where a GPU is. For bench.cpp alone.
//
// A rate is a counter of one of two names, which docs/benchmarks/plot.py knows: "FLOP/s" and
// "bytes/s". A benchmark with both is drawn by the first.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

#include "common/device/array.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/random_matrix.hpp"

namespace flash_steps {

using Benchmark = benchmark::internal::Benchmark;

// ---- inputs

// Normal numbers; `which` (0 for Q, 1 for K, ...) says where in a row of them to begin. From
// the 1'000'003rd on they repeat: to draw gigabytes of them takes longer than the measurement.
inline void fill_random(std::span<float> numbers, Index which) {
  static const Vector<float> drawn = random_matrix<float>(1'000'003, 1, 0, 0);
  Index at = which * 333'331 % drawn.size();
  for (float& x : numbers) {
    x = drawn[at++];
    if (at == drawn.size()) at = 0;
  }
}

inline Matrix<float> random_rows(Index rows, Index cols, Index which) {
  Matrix<float> result(rows, cols);
  fill_random({result.data(), static_cast<std::size_t>(result.size())}, which);
  return result;
}

inline HeadsArray<float> random_heads(Index H, Index N, Index d, Index which) {
  HeadsArray<float> result(1, H, N, d);
  fill_random(result.elements(), which);
  return result;
}

struct Head {
  Head(Index N, Index d)
      : Q(random_rows(N, d, 0)), K(random_rows(N, d, 1)), V(random_rows(N, d, 2)) {}
  Matrix<float> Q, K, V;  // (N, d)
};

struct Heads {
  Heads(Index H, Index Hkv, Index Nq, Index Nk, Index d)
      : Q(random_heads(H, Nq, d, 0)),
        K(random_heads(Hkv, Nk, d, 1)),
        V(random_heads(Hkv, Nk, d, 2)) {}
  HeadsArray<float> Q, K, V;  // [1, H, Nq, d], [1, Hkv, Nk, d] twice
};

// ---- a wrong result is not worth timing

// Fails the benchmark unless all of `actual` is within `tolerance` of `expected`; NaN is not.
template <class Actual, class Expected>
void check_near(benchmark::State& state, const Actual& actual, const Expected& expected,
                double tolerance) {
  const double error = (actual.template cast<double>() - expected)
                           .cwiseAbs()
                           .template maxCoeff<Eigen::PropagateNaN>();
  if (!(error <= tolerance)) state.SkipWithError("wrong result");
}

// What a check looks at: so few of the last rows that naive attention costs little.
inline Index rows_to_check(Index N) { return std::min<Index>(N, 8); }

// Naive attention in float64 of the last rows of Q.
inline ReferenceResult last_rows(MatrixIn<float> Q, MatrixIn<float> K, MatrixIn<float> V,
                                 const ReferenceOptions& options = {}) {
  return reference_attention(Q.bottomRows(rows_to_check(Q.rows())).cast<double>(),
                             K.cast<double>(), V.cast<double>(), options);
}

// Fails the benchmark if the last rows of O are not those of attention.
inline void check_attention(benchmark::State& state, MatrixIn<float> O, MatrixIn<float> Q,
                            MatrixIn<float> K, MatrixIn<float> V, double tolerance,
                            const ReferenceOptions& options = {}) {
  check_near(state, O.bottomRows(rows_to_check(O.rows())), last_rows(Q, K, V, options).O,
             tolerance);
}

// The same for the last head of a batch.
inline void check_attention(benchmark::State& state, const HeadsArray<float>& O,
                            const Heads& in, double tolerance,
                            const ReferenceOptions& options = {}) {
  const Index h = O.H() - 1, hkv = in.K.H() - 1;
  check_attention(state, O.head(0, h), in.Q.head(0, h), in.K.head(0, hkv), in.V.head(0, hkv),
                  tolerance, options);
}

// ---- time

template <class Run>
void time_cpu(benchmark::State& state, const Run& run) {
  for (auto _ : state) {
    run();
    benchmark::ClobberMemory();
  }
}

// Between two moments at which the GPU is idle, after a run that is not timed: what fits into
// the L2 cache (50 MB on an H200) is warm. `runs` in a row count as one, divided by their
// number: for kernels that are not much longer than their launch.
template <class Run>
void time_cuda(benchmark::State& state, const Run& run, int runs = 1) {
  run();
  synchronize_device();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) run();
    synchronize_device();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(time.count() / runs);
  }
}

// ---- what a run does, counted by the second

inline void count_rate(benchmark::State& state, const char* unit, Index amount) {
  state.counters[unit] = benchmark::Counter(static_cast<double>(amount),
                                            benchmark::Counter::kIsIterationInvariantRate);
}
inline void count_flops(benchmark::State& state, Index amount) {
  count_rate(state, "FLOP/s", amount);
}
inline void count_bytes(benchmark::State& state, Index amount) {
  count_rate(state, "bytes/s", amount);
}

// The operations of one of attention's matrix products, such as S = Q K^T: a multiplication and
// an addition for each query, key and channel, half as many when causal. A forward pass has two
// products, a backward pass five; exp is not counted.
inline Index product_flops(Index heads, Index N, Index d, bool causal = false) {
  return (causal ? 1 : 2) * heads * N * N * d;
}

// ---- which benchmarks there are

// function(state, arguments...) becomes a benchmark. Sizes, and another unit of time, are for
// the caller to add.
template <class Function, class... Arguments>
Benchmark* add_cpu(const std::string& name, Function function, Arguments... arguments) {
  return benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

// Whether the kernels run on a GPU. The simulator's time says nothing about one.
inline bool gpu_is_there() {
  return device_kind() == std::string("cuda") && device_available();
}

// The same for a function that calls time_cuda; only if gpu_is_there().
template <class Function, class... Arguments>
Benchmark* add_cuda(const std::string& name, Function function, Arguments... arguments) {
  return benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

// The rest of main: runs what was added, as the options say. Returns the exit status.
inline int run_benchmarks(int argc, char** argv) {
  if (gpu_is_there()) benchmark::AddCustomContext("gpu", device_name());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace flash_steps

// Measures what this machine can do at most: copying memory, and float32 multiply-adds. The
// chapters' benchmarks are drawn against these lines.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "common/device/array.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"
#include "docs/benchmarks/limits.hpp"

namespace {

using namespace flash_steps;

void set_rate(benchmark::State& state, const char* unit, double amount) {
  state.counters[unit] =
      benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

// All cores copy a stretch each: 1 GiB read and 1 GiB written, far beyond any cache.
void BM_limit_copy_cpu(benchmark::State& state) {
  constexpr Index kRows = 1 << 12, kCols = 1 << 16;
  const Matrix<float> from = Matrix<float>::Ones(kRows, kCols);
  Matrix<float> to = Matrix<float>::Zero(kRows, kCols);
  for (auto _ : state) {
#pragma omp parallel for
    for (Index r = 0; r < kRows; ++r) to.row(r) = from.row(r);
    benchmark::ClobberMemory();
  }
  set_rate(state, "bytes/s", 8.0 * static_cast<double>(from.size()));
}
BENCHMARK(BM_limit_copy_cpu)->UseRealTime()->Unit(benchmark::kMillisecond);

// Eigen's matrix product, one of 512 x 512 a core at a time: it stays in the cache.
void BM_limit_product_cpu(benchmark::State& state) {
  constexpr Index N = 512;
  constexpr int kProducts = 64;
  const Matrix<float> A = random_matrix<float>(N, N, 0, 0),
                      B = random_matrix<float>(N, N, 0, 1);
  for (auto _ : state) {
#pragma omp parallel for
    for (int i = 0; i < kProducts; ++i) {
      Matrix<float> C(N, N);
      C.noalias() = A * B;
      benchmark::DoNotOptimize(C.data());
      benchmark::ClobberMemory();
    }
  }
  set_rate(state, "FLOP/s", kProducts * 2.0 * N * N * N);
}
BENCHMARK(BM_limit_product_cpu)->UseRealTime()->Unit(benchmark::kMillisecond);

template <class Run>
void time_cuda(benchmark::State& state, const Run& run) {
  run();
  for (auto _ : state) {
    synchronize_device();
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize_device();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(time.count());
  }
}

void BM_limit_copy_cuda(benchmark::State& state) {
  const DeviceArray<float> from(1 << 28);
  DeviceArray<float> to(from.size());
  time_cuda(state, [&] { to.copy_from(from); });
  set_rate(state, "bytes/s", 8.0 * static_cast<double>(from.size()));
}

void BM_limit_multiply_add_cuda(benchmark::State& state) {
  constexpr int kSteps = 4096;
  DeviceArray<float> out(device_limits().multiprocessors * 32 * kFmaThreads);
  time_cuda(state, [&] { multiply_add(out, kSteps); });
  set_rate(state, "FLOP/s", 2.0 * kFmasARound * kSteps * static_cast<double>(out.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (device_kind() == std::string("cuda") && device_available()) {
    const auto add = [](const char* name, void (*function)(benchmark::State&)) {
      benchmark::RegisterBenchmark(name, function)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(20);
    };
    add("BM_limit_copy_cuda", BM_limit_copy_cuda);
    add("BM_limit_multiply_add_cuda", BM_limit_multiply_add_cuda);
    benchmark::AddCustomContext("gpu", device_name());
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}

// Times chapter 01 on the CPU and, in a build for a GPU, on the GPU: there beside a kernel that
// only copies, in the same run.
//
// "bytes" is what must pass through memory, per second: 4 bytes for each float of x read once
// for m and l, read again for p, and written (a vector), or read and written once (a copy, and
// rows that stay on chip).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

// N normal numbers; from the 999 983rd on they repeat, for 2^28 of them take a while to draw.
Vector<float> input(Index N) {
  const Vector<float> some = random_matrix<float>(std::min<Index>(N, 999983), 1, 0, 0);
  Vector<float> x(N);
  for (Index i = 0; i < N; ++i) x[i] = some[i % some.size()];
  return x;
}

// Whether p is softmax(x), by the textbook in float64.
bool is_right(VectorIn<float> x, VectorIn<float> p) {
  const auto weight = (x.cast<double>().array() - double{x.maxCoeff()}).exp();
  const double l = weight.sum();
  return (p.cast<double>().array() * l / weight - 1.0).abs().maxCoeff<Eigen::PropagateNaN>() <=
         1e-5;
}

bool rows_are_right(const Matrix<float>& X, const Matrix<float>& P) {
  for (Index r = 0; r < X.rows(); ++r) {
    if (!is_right(X.row(r).transpose(), P.row(r).transpose())) return false;
  }
  return true;
}

void count_bytes(benchmark::State& state, double bytes) {
  state.counters["bytes"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

// ---- the CPU

void BM_online_softmax_cpu(benchmark::State& state) {
  const Vector<float> x = input(state.range(0));
  Vector<float> p(x.size());
  online_softmax_cpu<float>(x, p);
  if (!is_right(x, p)) return state.SkipWithError("wrong result");
  for (auto _ : state) benchmark::DoNotOptimize(online_softmax_cpu<float>(x, p));
  count_bytes(state, 12.0 * static_cast<double>(x.size()));
}
BENCHMARK(BM_online_softmax_cpu)
    ->ArgName("N")
    ->Arg(1 << 10)
    ->Arg(1 << 16)
    ->Arg(1 << 20)
    ->Arg(1 << 24)
    ->UseRealTime();

void BM_online_softmax_rows_cpu(benchmark::State& state) {
  const Matrix<float> X = random_matrix<float>(state.range(0), state.range(1), 0, 0);
  Matrix<float> P(X.rows(), X.cols());
  online_softmax_rows_cpu<float>(X, P);
  if (!rows_are_right(X, P)) return state.SkipWithError("wrong result");
  for (auto _ : state) online_softmax_rows_cpu<float>(X, P);
  count_bytes(state, 8.0 * static_cast<double>(X.size()));
}
BENCHMARK(BM_online_softmax_rows_cpu)
    ->ArgNames({"rows", "cols"})
    ->Args({4096, 256})
    ->Args({256, 4096})
    ->UseRealTime();

// ---- the GPU

// Times `launches` runs between two moments at which the GPU is idle: no time of the host
// counts but that of the first launch. Inputs of more than the L2 cache (50 MB on an H200) come
// from memory each time; smaller ones are warm.
template <class Run>
void time_cuda(benchmark::State& state, const Run& run) {
  constexpr int kRuns = 20;
  run();
  for (auto _ : state) {
    synchronize_device();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) run();
    synchronize_device();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(time.count() / kRuns);
  }
}

void BM_copy_cuda(benchmark::State& state) {
  const Vector<float> x = input(state.range(0));
  const DeviceArray<float> from = to_device(x);
  DeviceArray<float> to(x.size());
  to.copy_from(from);
  if (to_host(to) != x) return state.SkipWithError("wrong result");
  time_cuda(state, [&] { to.copy_from(from); });
  count_bytes(state, 8.0 * static_cast<double>(x.size()));
}

void BM_online_softmax_cuda(benchmark::State& state, SoftmaxWidth width) {
  const Vector<float> x = input(state.range(0));
  const DeviceArray<float> device_x = to_device(x);
  DeviceArray<float> p(x.size());
  DeviceMatrix<float> states(1 + online_softmax_blocks(x.size()), 2);
  online_softmax_cuda(device_x, p, states, width);
  if (!is_right(x, to_host(p))) return state.SkipWithError("wrong result");
  time_cuda(state, [&] { online_softmax_cuda(device_x, p, states, width); });
  count_bytes(state, 12.0 * static_cast<double>(x.size()));
}

void BM_online_softmax_rows_cuda(benchmark::State& state) {
  const Index rows = state.range(0), cols = state.range(1);
  const Matrix<float> X = input(rows * cols).reshaped<Eigen::RowMajor>(rows, cols);
  const DeviceMatrix<float> device_X = to_device(X);
  DeviceMatrix<float> P(rows, cols);
  online_softmax_rows_cuda(device_X, P);
  if (!rows_are_right(X, to_host(P))) return state.SkipWithError("wrong result");
  time_cuda(state, [&] { online_softmax_rows_cuda(device_X, P); });
  count_bytes(state, 8.0 * static_cast<double>(X.size()));
}

void register_cuda_benchmarks() {
  const auto add = [](const std::string& name, const auto& function,
                      const std::vector<std::string>& arguments = {"N"}) {
    return benchmark::RegisterBenchmark(name.c_str(), function)
        ->ArgNames(arguments)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(5);  // of 20 runs each
  };
  const auto softmax = [](SoftmaxWidth width) {
    return [width](benchmark::State& state) { BM_online_softmax_cuda(state, width); };
  };
  add("BM_copy_cuda", BM_copy_cuda)->Arg(1 << 16)->Arg(1 << 20)->Arg(1 << 24)->Arg(1 << 28);
  add("BM_online_softmax_cuda/thread", softmax(SoftmaxWidth::thread))
      ->Arg(1 << 10)
      ->Arg(1 << 16);
  add("BM_online_softmax_cuda/block", softmax(SoftmaxWidth::block))
      ->Arg(1 << 10)
      ->Arg(1 << 16)
      ->Arg(1 << 20)
      ->Arg(1 << 24);
  add("BM_online_softmax_cuda/grid", softmax(SoftmaxWidth::grid))
      ->Arg(1 << 10)
      ->Arg(1 << 16)
      ->Arg(1 << 20)
      ->Arg(1 << 24)
      ->Arg(1 << 28);
  add("BM_online_softmax_rows_cuda", BM_online_softmax_rows_cuda, {"rows", "cols"})
      ->Args({1 << 18, 256})
      ->Args({1 << 16, 1024})
      ->Args({1 << 15, 4096})
      ->Args({1 << 13, 16384})
      ->Args({2048, 50257})
      ->Args({512, 262144});
}

}  // namespace

int main(int argc, char** argv) {
  if (device_kind() == std::string("cuda") && device_available()) register_cuda_benchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}

// Times chapter 01 on the CPU and, in a build for a GPU, on the GPU: there beside a kernel that
// only copies, in the same run.
//
// "bytes/s" counts what must pass through memory: 4 bytes for each float of x read once for m
// and l, read again for p, and written (a vector), or read and written once (a copy, and rows
// that stay on chip). The limit is the copy.
#include "common/bench/bench.hpp"
#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/01_online_softmax/online_softmax_cuda.hpp"

namespace {

using namespace flash_steps;

// Whether p is softmax(x), by the textbook in float64.
void check_softmax(benchmark::State& state, VectorIn<float> x, VectorIn<float> p) {
  const auto weight = (x.cast<double>().array() - double{x.maxCoeff()}).exp();
  const Vector<double> ratio = p.cast<double>().array() * weight.sum() / weight;
  check_near(state, ratio, Vector<double>::Ones(x.size()), 1e-5);
}

void check_rows(benchmark::State& state, const Matrix<float>& X, const Matrix<float>& P) {
  for (Index r = 0; r < X.rows(); ++r) {
    check_softmax(state, X.row(r).transpose(), P.row(r).transpose());
  }
}

void BM_online_softmax_cpu(benchmark::State& state) {
  const Vector<float> x = random_rows(state.range(0), 1, 0);
  Vector<float> p(x.size());
  time_cpu(state, [&] { online_softmax_cpu<float>(x, p); });
  count_bytes(state, 12 * x.size());
  check_softmax(state, x, p);
}

void BM_online_softmax_rows_cpu(benchmark::State& state) {
  const Matrix<float> X = random_rows(state.range(0), state.range(1), 0);
  Matrix<float> P(X.rows(), X.cols());
  time_cpu(state, [&] { online_softmax_rows_cpu<float>(X, P); });
  count_bytes(state, 8 * X.size());
  check_rows(state, X, P);
}

constexpr int kRuns = 20;  // the shortest take as long as their launch

void BM_copy_cuda(benchmark::State& state) {
  const Vector<float> x = random_rows(state.range(0), 1, 0);
  const DeviceArray<float> from = to_device(x);
  DeviceArray<float> to(x.size());
  time_cuda(
      state, [&] { to.copy_from(from); }, kRuns);
  count_bytes(state, 8 * x.size());
  check_near(state, to_host(to), x.cast<double>(), 0.0);
}

void BM_online_softmax_cuda(benchmark::State& state, SoftmaxWidth width) {
  const Vector<float> x = random_rows(state.range(0), 1, 0);
  const DeviceArray<float> device_x = to_device(x);
  DeviceArray<float> p(x.size());
  DeviceMatrix<float> states(1 + online_softmax_blocks(x.size()), 2);
  time_cuda(
      state, [&] { online_softmax_cuda(device_x, p, states, width); }, kRuns);
  count_bytes(state, 12 * x.size());
  check_softmax(state, x, to_host(p));
}

void BM_online_softmax_rows_cuda(benchmark::State& state) {
  const Matrix<float> X = random_rows(state.range(0), state.range(1), 0);
  const DeviceMatrix<float> device_X = to_device(X);
  DeviceMatrix<float> P(X.rows(), X.cols());
  time_cuda(
      state, [&] { online_softmax_rows_cuda(device_X, P); }, kRuns);
  count_bytes(state, 8 * X.size());
  check_rows(state, X, to_host(P));
}

// Once without more time, for a measurement is `kRuns` runs already.
Benchmark* briefly(Benchmark* b) { return b->Unit(benchmark::kMicrosecond)->Iterations(5); }

void add_cuda_benchmarks() {
  const auto softmax = [](const char* name, SoftmaxWidth width) {
    return briefly(add_cuda(name, BM_online_softmax_cuda, width))->ArgName("N");
  };
  briefly(add_cuda("BM_copy_cuda", BM_copy_cuda))
      ->ArgName("N")
      ->ArgsProduct({{1 << 16, 1 << 20, 1 << 24, 1 << 28}});
  softmax("BM_online_softmax_cuda/thread", SoftmaxWidth::thread)
      ->ArgsProduct({{1 << 10, 1 << 16}});
  softmax("BM_online_softmax_cuda/block", SoftmaxWidth::block)
      ->ArgsProduct({{1 << 10, 1 << 16, 1 << 20, 1 << 24}});
  softmax("BM_online_softmax_cuda/grid", SoftmaxWidth::grid)
      ->ArgsProduct({{1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28}});
  briefly(add_cuda("BM_online_softmax_rows_cuda", BM_online_softmax_rows_cuda))
      ->ArgNames({"rows", "cols"})
      ->Args({1 << 18, 256})
      ->Args({1 << 16, 1024})
      ->Args({1 << 15, 4096})
      ->Args({1 << 13, 16384})
      ->Args({2048, 50257})
      ->Args({512, 262144});
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_online_softmax_cpu", BM_online_softmax_cpu)
      ->ArgName("N")
      ->ArgsProduct({{1 << 10, 1 << 16, 1 << 20, 1 << 24}})
      ->Unit(benchmark::kMicrosecond);
  add_cpu("BM_online_softmax_rows_cpu", BM_online_softmax_rows_cpu)
      ->ArgNames({"rows", "cols"})
      ->Args({4096, 256})
      ->Args({256, 4096});
  if (gpu_is_there()) add_cuda_benchmarks();
  return run_benchmarks(argc, argv);
}

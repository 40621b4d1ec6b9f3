// Measures what this machine can do at most: copying memory, and float32 multiply-adds. The
// chapters' benchmarks are drawn against these lines.
#include "docs/benchmarks/limits.hpp"
#include "common/bench/bench.hpp"

namespace {

using namespace flash_steps;

// All cores copy a stretch each: 1 GiB read and 1 GiB written, far beyond any cache.
void BM_limit_copy_cpu(benchmark::State& state) {
  constexpr Index kRows = 1 << 12, kCols = 1 << 16;
  const Matrix<float> from = Matrix<float>::Ones(kRows, kCols);
  Matrix<float> to = Matrix<float>::Zero(kRows, kCols);
  time_cpu(state, [&] {
#pragma omp parallel for
    for (Index r = 0; r < kRows; ++r) to.row(r) = from.row(r);
  });
  count_bytes(state, 8 * from.size());
}

// Eigen's matrix product, one of 512 x 512 a core at a time: it stays in the cache.
void BM_limit_product_cpu(benchmark::State& state) {
  constexpr Index N = 512, kProducts = 64;
  const Matrix<float> A = random_rows(N, N, 0), B = random_rows(N, N, 1);
  time_cpu(state, [&] {
#pragma omp parallel for
    for (Index i = 0; i < kProducts; ++i) {
      Matrix<float> C(N, N);
      C.noalias() = A * B;
      benchmark::DoNotOptimize(C.data());
      benchmark::ClobberMemory();
    }
  });
  count_flops(state, kProducts * 2 * N * N * N);
}

void BM_limit_copy_cuda(benchmark::State& state) {
  const DeviceArray<float> from(1 << 28);
  DeviceArray<float> to(from.size());
  time_cuda(state, [&] { to.copy_from(from); });
  count_bytes(state, 8 * from.size());
}

void BM_limit_multiply_add_cuda(benchmark::State& state) {
  constexpr int kSteps = 4096;
  DeviceArray<float> out(device_limits().multiprocessors * 32 * kFmaThreads);
  time_cuda(state, [&] { multiply_add(out, kSteps); });
  count_flops(state, 2 * kFmasARound * kSteps * out.size());
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_limit_copy_cpu", BM_limit_copy_cpu);
  add_cpu("BM_limit_product_cpu", BM_limit_product_cpu);
  if (gpu_is_there()) {
    add_cuda("BM_limit_copy_cuda", BM_limit_copy_cuda)->Iterations(20);
    add_cuda("BM_limit_multiply_add_cuda", BM_limit_multiply_add_cuda)->Iterations(20);
  }
  return run_benchmarks(argc, argv);
}

// Times chapter 09: one new token, long caches, splits swept. The work is to move K and V once,
// and that is what "bytes/s" counts: 2 * Hkv * Nk * d numbers of 4 bytes. Everything else, the
// parts above all, makes it smaller. The limit is the speed at which the memory can be read:
// BM_read_cpu on the CPU, the device's data sheet or chapter 01's copy on a GPU.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

constexpr Index kHead = 128;  // d

struct Inputs {
  HeadsArray<float> Q, K, V;
};

// Random numbers for all of a cache of gigabytes would take longer than the measurement: each
// head begins elsewhere in one block of them.
HeadsArray<float> heads(Index H, Index N, std::uint64_t stream) {
  static const Matrix<float> pool = random_matrix<float>(1, 1'000'003, 0, 0);
  HeadsArray<float> result(1, H, N, kHead);
  Index at = static_cast<Index>(stream) * 333'331;
  for (float& x : result.elements()) x = pool(0, at++ % pool.cols());
  return result;
}

Inputs inputs(Index H, Index Hkv, Index Nk) {
  return {heads(H, 1, 0), heads(Hkv, Nk, 1), heads(Hkv, Nk, 2)};
}

void count_bytes(benchmark::State& state, const Inputs& in, Index splits) {
  const double bytes = 4.0 * static_cast<double>(in.K.elements().size()) * 2;
  state.counters["bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["made"] = static_cast<double>(splits);
}

// A wrong result is not worth timing: the last head against naive attention in float64.
bool is_right(const HeadsArray<float>& O, const Inputs& in) {
  const Index H = in.Q.H(), Hkv = in.K.H();
  const Matrix<double> Q = in.Q.head(0, H - 1).cast<double>(),
                       K = in.K.head(0, Hkv - 1).cast<double>(),
                       V = in.V.head(0, Hkv - 1).cast<double>();
  const auto exact = reference_attention(Q, K, V);
  return (O.head(0, H - 1).cast<double>() - exact.O)
             .cwiseAbs()
             .maxCoeff<Eigen::PropagateNaN>() <= 1e-5;
}

// 0 stands for auto.
DecodingOptions options(const benchmark::State& state, Merge merge) {
  DecodingOptions result{.merge = merge, .tile = {64, 64}};
  if (state.range(3) > 0) result.splits = state.range(3);
  return result;
}

void BM_flash_decoding_cpu(benchmark::State& state, Merge merge) {
  const Inputs in = inputs(state.range(0), state.range(1), state.range(2));
  const DecodingSizes sizes{1, in.Q.H(), in.K.H(), 1, in.K.N(), kHead};
  const DecodingOptions o = options(state, merge);
  HeadsArray<float> O(1, in.Q.H(), 1, kHead);
  Matrix<float> LSE(in.Q.H(), 1);
  for (auto _ : state) {
    flash_decoding_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, o);
  }
  count_bytes(state, in, flash_decoding_splits_cpu(sizes, o));
  if (!is_right(O, in)) state.SkipWithError("wrong result");
}

// The sum of all numbers of K and V, on all threads: what reading alone costs.
void BM_read_cpu(benchmark::State& state) {
  const Inputs in = inputs(1, state.range(0), state.range(1));
  const Index parts = 64, size = static_cast<Index>(in.K.elements().size()) / parts;
  for (auto _ : state) {
    float total = 0;
#pragma omp parallel for reduction(+ : total)
    for (Index i = 0; i < 2 * parts; ++i) {
      const auto& from = i % 2 == 0 ? in.K : in.V;
      total +=
          Eigen::Map<const Eigen::ArrayXf>(from.elements().data() + i / 2 * size, size).sum();
    }
    benchmark::DoNotOptimize(total);
  }
  count_bytes(state, in, 0);
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches, the merge included.
void BM_flash_decoding_cuda(benchmark::State& state, Merge merge) {
  if (!device_available()) {
    state.SkipWithError("this build wants a GPU, and there is none");
    return;
  }
  const Inputs in = inputs(state.range(0), state.range(1), state.range(2));
  const DecodingSizes sizes{1, in.Q.H(), in.K.H(), 1, in.K.N(), kHead};
  DecodingOptions o = options(state, merge);
  o.tile = default_tiling(kHead, device_limits().shared_bytes_per_block);
  const Index splits = flash_decoding_splits_cuda(sizes, o);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(1, in.Q.H(), 1, kHead);
  DeviceMatrix<float> LSE(in.Q.H(), 1);
  DeviceSplitParts parts(splits, sizes.rows(), kHead);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    flash_decoding_cuda(Q, K, V, O, LSE, o, &parts);
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  count_bytes(state, in, splits);
  if (!is_right(to_host(O), in)) state.SkipWithError("wrong result");
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "Hkv", "Nk", "splits"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const std::int64_t splits : {1, 2, 8, 64, 1024}) b->Args({4, 1, 65536, splits});
  b->Args({4, 1, 65536, 0})->Args({32, 8, 16384, 0})->Args({32, 32, 16384, 0});
}
BENCHMARK_CAPTURE(BM_flash_decoding_cpu, sequential, Merge::sequential)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_flash_decoding_cpu, last_block, Merge::last_block)->Apply(cpu_grid);
BENCHMARK(BM_read_cpu)
    ->ArgNames({"Hkv", "Nk"})
    ->Args({1, 65536})
    ->Args({8, 16384})
    ->Args({32, 16384})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The simulator needs seconds for what a GPU does in microseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  const bool gpu = std::string(device_kind()) == "cuda";
  b->ArgNames({"H", "Hkv", "Nk", "splits"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (!gpu) {
    b->Args({4, 1, 1024, 1})->Args({4, 1, 1024, 4});
    return;
  }
  for (const std::int64_t Hkv : {8, 32}) {
    for (const std::int64_t Nk : {1024, 8192, 32768, 131072}) b->Args({32, Hkv, Nk, 0});
    for (const std::int64_t splits : {1, 4, 16, 33, 64, 256, 2048}) {
      b->Args({32, Hkv, 131072, splits});
    }
  }
}
BENCHMARK_CAPTURE(BM_flash_decoding_cuda, sequential, Merge::sequential)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_flash_decoding_cuda, tree, Merge::tree)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_flash_decoding_cuda, last_block, Merge::last_block)->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

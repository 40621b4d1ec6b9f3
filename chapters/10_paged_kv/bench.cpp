// Times chapter 10 beside chapter 09: one new token, the same cache contiguous and in blocks.
// The work is to move K and V once, and that is what "bytes/s" counts: 2 * Hkv * Nk * d numbers
// of 4 bytes. block_size 0 is chapter 09; shuffled 1 has the blocks in random order in memory,
// 0 in ascending order. The limit is the speed at which the memory can be read.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/10_paged_kv/paged_attention.hpp"
#include "chapters/10_paged_kv/paged_attention_cuda.hpp"
#include "chapters/10_paged_kv/scatter_tokens.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

constexpr Index kHead = 128;  // d

struct Inputs {
  HeadsArray<float> Q, K, V;  // contiguous
  ScatteredTokens<float> paged;
};

// Random numbers for all of a cache of gigabytes would take longer than the measurement: each
// array begins elsewhere in one block of them.
HeadsArray<float> heads(Index H, Index N, std::uint64_t stream) {
  static const Matrix<float> numbers = random_matrix<float>(1, 1'000'003, 0, 0);
  HeadsArray<float> result(1, H, N, kHead);
  Index at = static_cast<Index>(stream) * 333'331;
  for (float& x : result.elements()) x = numbers(0, at++ % numbers.cols());
  return result;
}

Inputs inputs(const benchmark::State& state) {
  const Index H = state.range(0), Hkv = state.range(1), Nk = state.range(2),
              block_size = state.range(3);
  Inputs in{heads(H, 1, 0), heads(Hkv, Nk, 1), heads(Hkv, Nk, 2), {}};
  if (block_size > 0) {
    const std::vector<std::int64_t> seq_lens{Nk};
    const auto seed = state.range(4) ? std::optional<std::uint64_t>(0) : std::nullopt;
    in.paged =
        scatter_tokens<float>(in.K.view(), in.V.view(), seq_lens, block_size, 0, seed, 0.0f);
  }
  return in;
}

void count_bytes(benchmark::State& state, const Inputs& in) {
  const double bytes = 4.0 * static_cast<double>(in.K.elements().size()) * 2;
  state.counters["bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
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

void BM_paged_attention_cpu(benchmark::State& state) {
  const Inputs in = inputs(state);
  HeadsArray<float> O(1, in.Q.H(), 1, kHead);
  Matrix<float> LSE(in.Q.H(), 1);
  for (auto _ : state) {
    if (state.range(3) == 0) {
      flash_decoding_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE);
    } else {
      paged_attention_cpu<float>(in.Q.view(), in.paged.pool.view(), in.paged.table, O.view(),
                                 LSE);
    }
  }
  count_bytes(state, in);
  if (!is_right(O, in)) state.SkipWithError("wrong result");
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches, the merge included.
void BM_paged_attention_cuda(benchmark::State& state, Merge merge) {
  if (!device_available()) {
    state.SkipWithError("this build wants a GPU, and there is none");
    return;
  }
  const Inputs in = inputs(state);
  const DecodingSizes sizes{1, in.Q.H(), in.K.H(), 1, in.K.N(), kHead};
  const DecodingOptions options{
      .merge = merge,
      .tile = default_tiling(kHead, device_limits().shared_bytes_per_block - 1024)};
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> pool;
  std::optional<DeviceBlockTable> table;
  if (state.range(3) > 0) {
    pool = to_device(in.paged.pool);
    table.emplace(in.paged.table, pool.B() / 2, pool.N());
  }
  DeviceHeads<float> O(1, in.Q.H(), 1, kHead);
  DeviceMatrix<float> LSE(in.Q.H(), 1);
  DeviceSplitParts parts(flash_decoding_splits_cuda(sizes, options), sizes.rows(), kHead);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    if (table) {
      paged_attention_cuda(Q, pool, *table, O, LSE, options, &parts);
    } else {
      flash_decoding_cuda(Q, K, V, O, LSE, options, &parts);
    }
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  count_bytes(state, in);
  if (!is_right(to_host(O), in)) state.SkipWithError("wrong result");
}

void block_sizes(benchmark::internal::Benchmark* b, std::int64_t H, std::int64_t Hkv,
                 std::int64_t Nk) {
  b->Args({H, Hkv, Nk, 0, 0});
  for (const std::int64_t size : {1, 16, 64, 256}) {
    for (const std::int64_t shuffled : {0, 1}) b->Args({H, Hkv, Nk, size, shuffled});
  }
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "Hkv", "Nk", "block_size", "shuffled"});
  b->UseRealTime()->Unit(benchmark::kMillisecond);
  block_sizes(b, 4, 1, 65536);
  block_sizes(b, 32, 8, 16384);
}
BENCHMARK(BM_paged_attention_cpu)->Apply(cpu_grid);

// The simulator needs seconds for what a GPU does in microseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"H", "Hkv", "Nk", "block_size", "shuffled"});
  b->UseManualTime()->Unit(benchmark::kMillisecond);
  if (std::string(device_kind()) != "cuda") return block_sizes(b, 4, 1, 1024);
  for (const std::int64_t Hkv : {8, 32}) {
    for (const std::int64_t Nk : {8192, 131072}) block_sizes(b, 32, Hkv, Nk);
  }
}
BENCHMARK_CAPTURE(BM_paged_attention_cuda, sequential, Merge::sequential)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_paged_attention_cuda, last_block, Merge::last_block)->Apply(device_grid);

}  // namespace

BENCHMARK_MAIN();

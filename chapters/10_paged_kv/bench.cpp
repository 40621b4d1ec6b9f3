// Times chapter 10 beside chapter 09: one new token, the same cache contiguous and in blocks.
// The work is to move K and V once, and that is what "bytes/s" counts: 2 * Hkv * Nk * d numbers
// of 4 bytes. block_size 0 is chapter 09; shuffled 1 has the blocks in random order in memory,
// 0 in ascending order. The limit is the speed at which the memory can be read.
#include <optional>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/10_paged_kv/paged_attention.hpp"
#include "chapters/10_paged_kv/paged_attention_cuda.hpp"
#include "chapters/10_paged_kv/scatter_tokens.hpp"
#include "common/bench/bench.hpp"

namespace {

using namespace flash_steps;

constexpr Index kChannels = 128;  // d

struct Cache : Heads {
  explicit Cache(const benchmark::State& state)
      : Heads(state.range(0), state.range(1), 1, state.range(2), kChannels) {
    if (state.range(3) == 0) return;
    const std::vector<std::int64_t> seq_lens{K.N()};
    const auto seed = state.range(4) ? std::optional<std::uint64_t>(0) : std::nullopt;
    paged = scatter_tokens<float>(K.view(), V.view(), seq_lens, state.range(3), 0, seed, 0.0f);
  }
  Index bytes() const { return 2 * 4 * K.H() * K.N() * K.d(); }
  std::optional<ScatteredTokens<float>> paged;
};

void BM_paged_attention_cpu(benchmark::State& state) {
  const Cache in(state);
  HeadsArray<float> O(1, in.Q.H(), 1, kChannels);
  Matrix<float> LSE(in.Q.H(), 1);
  time_cpu(state, [&] {
    if (in.paged) {
      paged_attention_cpu<float>(in.Q.view(), in.paged->pool.view(), in.paged->table, O.view(),
                                 LSE);
    } else {
      flash_decoding_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE);
    }
  });
  count_bytes(state, in.bytes());
  check_attention(state, O, in, 1e-5);
}

// The merge included.
void BM_paged_attention_cuda(benchmark::State& state, Merge merge) {
  const Cache in(state);
  const DecodingSizes sizes{1, in.Q.H(), in.K.H(), 1, in.K.N(), kChannels};
  const DecodingOptions options{
      .merge = merge,
      .tile = default_tiling(kChannels, device_limits().shared_bytes_per_block - 1024)};
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> pool;
  std::optional<DeviceBlockTable> table;
  if (in.paged) {
    pool = to_device(in.paged->pool);
    table.emplace(in.paged->table, pool.B() / 2, pool.N());
  }
  DeviceHeads<float> O(1, in.Q.H(), 1, kChannels);
  DeviceMatrix<float> LSE(in.Q.H(), 1);
  DeviceSplitParts parts(flash_decoding_splits_cuda(sizes, options), sizes.rows(), kChannels);
  time_cuda(state, [&] {
    if (table) {
      paged_attention_cuda(Q, pool, *table, O, LSE, options, &parts);
    } else {
      flash_decoding_cuda(Q, K, V, O, LSE, options, &parts);
    }
  });
  count_bytes(state, in.bytes());
  check_attention(state, to_host(O), in, 1e-5);
}

void block_sizes(Benchmark* b, std::int64_t H, std::int64_t Hkv, std::int64_t Nk) {
  b->ArgNames({"H", "Hkv", "Nk", "block_size", "shuffled"})
      ->Args({H, Hkv, Nk, 0, 0})
      ->ArgsProduct({{H}, {Hkv}, {Nk}, {1, 16, 64, 256}, {0, 1}});
}
void cpu_sizes(Benchmark* b) {
  block_sizes(b, 4, 1, 65536);
  block_sizes(b, 32, 8, 16384);
}
void cuda_sizes(Benchmark* b) {
  for (const std::int64_t Hkv : {8, 32}) {
    for (const std::int64_t Nk : {8192, 131072}) block_sizes(b, 32, Hkv, Nk);
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_paged_attention_cpu", BM_paged_attention_cpu)->Apply(cpu_sizes);
  if (gpu_is_there()) {
    add_cuda("BM_paged_attention_cuda/sequential", BM_paged_attention_cuda, Merge::sequential)
        ->Apply(cuda_sizes);
    add_cuda("BM_paged_attention_cuda/last_block", BM_paged_attention_cuda, Merge::last_block)
        ->Apply(cuda_sizes);
  }
  return run_benchmarks(argc, argv);
}

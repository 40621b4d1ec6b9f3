// Times chapter 09: one new token, long caches, splits swept. The work is to move K and V once,
// and that is what "bytes/s" counts: 2 * Hkv * Nk * d numbers of 4 bytes. Everything else, the
// parts above all, makes it smaller. The limit is the speed at which the memory can be read:
// BM_read_cpu on the CPU, the device's data sheet or chapter 01's copy on a GPU. "made" is the
// number of splits; splits:0 leaves it to the chapter.
#include "common/bench/bench.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"

namespace {

using namespace flash_steps;

constexpr Index kChannels = 128;  // d

struct Decoding : Heads {
  Decoding(const benchmark::State& state, Merge merge)
      : Heads(state.range(0), state.range(1), 1, state.range(2), kChannels),
        options{.merge = merge, .tile = {64, 64}} {
    if (state.range(3) > 0) options.splits = state.range(3);
  }
  DecodingSizes sizes() const { return {1, Q.H(), K.H(), 1, K.N(), kChannels}; }
  DecodingOptions options;
};

Index bytes_of(const Heads& in) { return 2 * 4 * in.K.H() * in.K.N() * in.K.d(); }

void BM_flash_decoding_cpu(benchmark::State& state, Merge merge) {
  const Decoding in(state, merge);
  HeadsArray<float> O(1, in.Q.H(), 1, kChannels);
  Matrix<float> LSE(in.Q.H(), 1);
  time_cpu(state, [&] {
    flash_decoding_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), O.view(), LSE, in.options);
  });
  count_bytes(state, bytes_of(in));
  state.counters["made"] =
      static_cast<double>(flash_decoding_splits_cpu(in.sizes(), in.options));
  check_attention(state, O, in, 1e-5);
}

// The sum of all numbers of K and V, on all threads: what reading alone costs.
void BM_read_cpu(benchmark::State& state) {
  const Heads in(1, state.range(0), 1, state.range(1), kChannels);
  const Index parts = 64, size = static_cast<Index>(in.K.elements().size()) / parts;
  time_cpu(state, [&] {
    float total = 0;
#pragma omp parallel for reduction(+ : total)
    for (Index i = 0; i < 2 * parts; ++i) {
      const auto& from = i % 2 == 0 ? in.K : in.V;
      total +=
          Eigen::Map<const Eigen::ArrayXf>(from.elements().data() + i / 2 * size, size).sum();
    }
    benchmark::DoNotOptimize(total);
  });
  count_bytes(state, bytes_of(in));
}

// The merge included.
void BM_flash_decoding_cuda(benchmark::State& state, Merge merge) {
  Decoding in(state, merge);
  in.options.tile = default_tiling(kChannels, device_limits().shared_bytes_per_block);
  const Index splits = flash_decoding_splits_cuda(in.sizes(), in.options);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(1, in.Q.H(), 1, kChannels);
  DeviceMatrix<float> LSE(in.Q.H(), 1);
  DeviceSplitParts parts(splits, in.sizes().rows(), kChannels);
  time_cuda(state, [&] { flash_decoding_cuda(Q, K, V, O, LSE, in.options, &parts); });
  count_bytes(state, bytes_of(in));
  state.counters["made"] = static_cast<double>(splits);
  check_attention(state, to_host(O), in, 1e-5);
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"H", "Hkv", "Nk", "splits"})
      ->ArgsProduct({{4}, {1}, {65536}, {1, 2, 8, 64, 1024, 0}})
      ->ArgsProduct({{32}, {8, 32}, {16384}, {0}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"H", "Hkv", "Nk", "splits"})
      ->ArgsProduct({{32}, {8, 32}, {1024, 8192, 32768, 131072}, {0}})
      ->ArgsProduct({{32}, {8, 32}, {131072}, {1, 4, 16, 33, 64, 256, 2048}});
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_flash_decoding_cpu/sequential", BM_flash_decoding_cpu, Merge::sequential)
      ->Apply(cpu_sizes);
  add_cpu("BM_flash_decoding_cpu/last_block", BM_flash_decoding_cpu, Merge::last_block)
      ->Apply(cpu_sizes);
  add_cpu("BM_read_cpu", BM_read_cpu)
      ->ArgNames({"Hkv", "Nk"})
      ->Args({1, 65536})
      ->Args({8, 16384})
      ->Args({32, 16384});
  if (gpu_is_there()) {
    add_cuda("BM_flash_decoding_cuda/sequential", BM_flash_decoding_cuda, Merge::sequential)
        ->Apply(cuda_sizes);
    add_cuda("BM_flash_decoding_cuda/tree", BM_flash_decoding_cuda, Merge::tree)
        ->Apply(cuda_sizes);
    add_cuda("BM_flash_decoding_cuda/last_block", BM_flash_decoding_cuda, Merge::last_block)
        ->Apply(cuda_sizes);
  }
  return run_benchmarks(argc, argv);
}

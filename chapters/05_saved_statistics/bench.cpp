// Times chapter 05 beside chapter 04: what it costs to keep m, l and LSE. Work is counted as
// two products, 4 * N * N * d operations, half of that when causal; exp is not counted. The
// limit is the arithmetic (BM_limit_product_cpu, BM_limit_multiply_add_cuda of
// docs/benchmarks).
#include "common/bench/bench.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"

namespace {

using namespace flash_steps;

void check_LSE(benchmark::State& state, const Vector<float>& LSE, const Head& in, bool causal) {
  check_near(state, LSE.tail(rows_to_check(LSE.size())),
             last_rows(in.Q, in.K, in.V, {.causal = causal}).LSE, 1e-4);
}

void BM_saved_forward_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  Matrix<float> O(N, d);
  Vector<float> m(N), l(N), LSE(N);
  time_cpu(state, [&] {
    saved_forward_cpu<float>(in.Q, in.K, in.V, O, m, l, LSE, {64, 64}, causal);
  });
  count_flops(state, 2 * product_flops(1, N, d, causal));
  check_LSE(state, LSE, in, causal);
}

// Chapter 04, which keeps nothing.
void BM_causal_forward_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  Matrix<float> O(N, d);
  time_cpu(state, [&] { causal_forward_cpu<float>(in.Q, in.K, in.V, O, {64, 64}, causal); });
  count_flops(state, 2 * product_flops(1, N, d, causal));
}

void BM_saved_forward_cuda(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> m(N), l(N), LSE(N);
  const Tiling tile = default_tiling(d, device_limits().shared_bytes_per_block);
  time_cuda(state, [&] { saved_forward_cuda(Q, K, V, O, m, l, LSE, tile, causal); });
  count_flops(state, 2 * product_flops(1, N, d, causal));
  check_LSE(state, to_host(LSE), in, causal);
}

void BM_causal_forward_cuda(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceMatrix<float> O(N, d);
  const Tiling tile = default_tiling(d, device_limits().shared_bytes_per_block);
  time_cuda(state, [&] { causal_forward_cuda(Q, K, V, O, tile, causal); });
  count_flops(state, 2 * product_flops(1, N, d, causal));
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096}, {64, 128}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
}

}  // namespace

int main(int argc, char** argv) {
  for (const bool causal : {false, true}) {
    const std::string mask = causal ? "causal" : "no_mask";
    add_cpu("BM_causal_forward_cpu/" + mask, BM_causal_forward_cpu, causal)->Apply(cpu_sizes);
    add_cpu("BM_saved_forward_cpu/" + mask, BM_saved_forward_cpu, causal)->Apply(cpu_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_causal_forward_cuda/" + mask, BM_causal_forward_cuda, causal)
        ->Apply(cuda_sizes);
    add_cuda("BM_saved_forward_cuda/" + mask, BM_saved_forward_cuda, causal)->Apply(cuda_sizes);
  }
  return run_benchmarks(argc, argv);
}

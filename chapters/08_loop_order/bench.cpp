// Times chapter 08: the queries outside, and the keys outside, normalised once and at every
// tile. Work is counted as two products, 4 * N * N * d operations, half of that when causal;
// exp is not counted. "bytes/s" counts what the order moves, by the formula. The limits are the
// arithmetic and the memory (BM_limit_* of docs/benchmarks).
#include "common/bench/bench.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/q_outer.hpp"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "common/tensor/ceil_div.hpp"

namespace {

using namespace flash_steps;

// Each order keeps its large tile: q_outer 128 queries, kv_outer 128 keys, the other has 64. At
// d = 128 that fits a Hopper's shared memory, and half of each a smaller GPU's.
Tiling tile_of(LoopOrder order) {
  const std::int64_t B =
      device_available() && device_limits().shared_bytes_per_block < 232448 ? 32 : 64;
  return order == LoopOrder::q_outer ? Tiling{2 * B, B} : Tiling{B, 2 * B};
}

void report(benchmark::State& state, const Matrix<float>& O, const Head& in, LoopOrder order,
            bool causal) {
  const Index N = O.rows(), d = O.cols();
  count_flops(state, 2 * product_flops(1, N, d, causal));
  count_bytes(state, 4 * predict_loop_order(order, N, N, d, tile_of(order), causal).total());
  check_attention(state, O, in.Q, in.K, in.V, 1e-5, {.causal = causal});
}

void BM_q_outer_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const Tiling tile = tile_of(LoopOrder::q_outer);
  Matrix<float> O(N, d);
  Vector<float> LSE(N);
  time_cpu(state, [&] { q_outer_cpu<float>(in.Q, in.K, in.V, O, LSE, tile, causal); });
  report(state, O, in, LoopOrder::q_outer, causal);
}

void BM_kv_outer_cpu(benchmark::State& state, Normalise when, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const Tiling tile = tile_of(LoopOrder::kv_outer);
  Matrix<float> O(N, d);
  Vector<float> m(N), l(N);
  time_cpu(state,
           [&] { kv_outer_cpu<float>(in.Q, in.K, in.V, O, m, l, tile, causal, {}, when); });
  report(state, O, in, LoopOrder::kv_outer, causal);
}

void BM_q_outer_cuda(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  const Tiling tile = tile_of(LoopOrder::q_outer);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> LSE(N);
  time_cuda(state, [&] { q_outer_cuda(Q, K, V, O, LSE, tile, causal); });
  report(state, to_host(O), in, LoopOrder::q_outer, causal);
}

void BM_kv_outer_cuda(benchmark::State& state, Normalise when, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  const Tiling tile = tile_of(LoopOrder::kv_outer);
  DeviceMatrix<float> O(N, d);
  DeviceArray<float> m(N), l(N);
  DeviceArray<unsigned> turns(1 + ceil_div(N, tile.Br));
  time_cuda(state, [&] { kv_outer_cuda(Q, K, V, O, m, l, turns, tile, causal, {}, when); });
  report(state, to_host(O), in, LoopOrder::kv_outer, causal);
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096}, {64, 128}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    std::string name;
    Normalise when;
    bool causal;
  } kv_outer[] = {{"once", Normalise::once, false},
                  {"every_tile", Normalise::every_tile, false},
                  {"once_causal", Normalise::once, true}};
  add_cpu("BM_q_outer_cpu/no_mask", BM_q_outer_cpu, false)->Apply(cpu_sizes);
  add_cpu("BM_q_outer_cpu/causal", BM_q_outer_cpu, true)->Apply(cpu_sizes);
  for (const auto& [name, when, causal] : kv_outer) {
    add_cpu("BM_kv_outer_cpu/" + name, BM_kv_outer_cpu, when, causal)->Apply(cpu_sizes);
  }
  if (gpu_is_there()) {
    add_cuda("BM_q_outer_cuda/no_mask", BM_q_outer_cuda, false)->Apply(cuda_sizes);
    add_cuda("BM_q_outer_cuda/causal", BM_q_outer_cuda, true)->Apply(cuda_sizes);
    for (const auto& [name, when, causal] : kv_outer) {
      add_cuda("BM_kv_outer_cuda/" + name, BM_kv_outer_cuda, when, causal)->Apply(cuda_sizes);
    }
  }
  return run_benchmarks(argc, argv);
}

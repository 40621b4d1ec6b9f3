// Times chapter 04: the causal walk that skips, the one that masks everything, and no mask.
// Work is counted as two products, 4 * N * N * d operations, half of that when causal, whether
// or not the walk does more; exp is not counted. The limit is the arithmetic
// (BM_limit_product_cpu, BM_limit_multiply_add_cuda of docs/benchmarks). "tiles" is how many
// the walk computes.
#include "common/bench/bench.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"

namespace {

using namespace flash_steps;

// What both twins count, and what is asked of their O: the last rows and, when causal, those of
// the first half, which sees no key beyond itself.
void report(benchmark::State& state, const Matrix<float>& O, const Head& in, Tiling tile,
            bool causal, Visit visit) {
  const Index N = O.rows(), d = O.cols(), half = causal ? N / 2 : N;
  count_flops(state, 2 * product_flops(1, N, d, causal));
  const TileCounts counts = count_tiles(N, N, tile, causal);
  state.counters["tiles"] = static_cast<double>(
      counts.full + counts.partial + (visit == Visit::all_tiles ? counts.hidden : 0));
  check_attention(state, O, in.Q, in.K, in.V, 1e-5, {.causal = causal});
  check_attention(state, O.topRows(half), in.Q.topRows(half), in.K.topRows(half),
                  in.V.topRows(half), 1e-5, {.causal = causal});
}

void BM_causal_forward_cpu(benchmark::State& state, bool causal, Visit visit) {
  const Head in(state.range(0), state.range(1));
  const Tiling tile{.Br = 64, .Bc = 64};
  Matrix<float> O(in.Q.rows(), in.Q.cols());
  time_cpu(state,
           [&] { causal_forward_cpu<float>(in.Q, in.K, in.V, O, tile, causal, {}, visit); });
  report(state, O, in, tile, causal, visit);
}

void BM_causal_forward_cuda(benchmark::State& state, bool causal, Visit visit) {
  const Head in(state.range(0), state.range(1));
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceMatrix<float> O(Q.rows(), Q.cols());
  const Tiling tile = default_tiling(Q.cols(), device_limits().shared_bytes_per_block);
  time_cuda(state, [&] { causal_forward_cuda(Q, K, V, O, tile, causal, {}, visit); });
  report(state, to_host(O), in, tile, causal, visit);
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{512, 1024, 2048, 4096}, {64, 128}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096, 16384, 65536}, {64, 128}});
}

}  // namespace

int main(int argc, char** argv) {
  struct {
    std::string name;
    bool causal;
    Visit visit;
  } const walks[] = {{"no_mask", false, Visit::skip_hidden},
                     {"mask_all", true, Visit::all_tiles},
                     {"skip", true, Visit::skip_hidden}};
  for (const auto& [name, causal, visit] : walks) {
    add_cpu("BM_causal_forward_cpu/" + name, BM_causal_forward_cpu, causal, visit)
        ->Apply(cpu_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_causal_forward_cuda/" + name, BM_causal_forward_cuda, causal, visit)
        ->Apply(cuda_sizes);
  }
  return run_benchmarks(argc, argv);
}

// Times chapter 03. On the CPU beside its tile products alone, in Eigen and equally parallel:
// the rest is the softmax. Work is counted as two products, 4 * N * N * d operations; exp is
// not counted. The limit is the arithmetic: BM_limit_product_cpu, BM_limit_multiply_add_cuda of
// docs/benchmarks.
#include "common/bench/bench.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"

namespace {

using namespace flash_steps;

void BM_tiled_forward_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  const Tiling tile{.Br = state.range(2), .Bc = state.range(3)};
  const Head in(N, d);
  Matrix<float> O(N, d);
  time_cpu(state, [&] { tiled_forward_cpu<float>(in.Q, in.K, in.V, O, tile); });
  count_flops(state, 2 * product_flops(1, N, d));
  check_attention(state, O, in.Q, in.K, in.V, 1e-5);
}

// S = Qi Kj^T and O += S Vj for all tiles, and nothing else.
void BM_tile_products_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), Br = state.range(2), Bc = state.range(3);
  const Head in(N, d);
  Matrix<float> O(N, d);
  time_cpu(state, [&] {
#pragma omp parallel for schedule(dynamic)
    for (Index q = 0; q < N; q += Br) {
      Matrix<float> S, Oi = Matrix<float>::Zero(std::min(Br, N - q), d);
      for (Index k = 0; k < N; k += Bc) {
        const Index cols = std::min(Bc, N - k);
        S.noalias() = in.Q.middleRows(q, Oi.rows()) * in.K.middleRows(k, cols).transpose();
        Oi.noalias() += S * in.V.middleRows(k, cols);
      }
      O.middleRows(q, Oi.rows()) = Oi;
    }
    benchmark::DoNotOptimize(O.data());
  });
  count_flops(state, 2 * product_flops(1, N, d));
}

void BM_tiled_forward_cuda(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1);
  const Head in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceMatrix<float> O(N, d);
  const Tiling tile = default_tiling(d, device_limits().shared_bytes_per_block);
  time_cuda(state, [&] { tiled_forward_cuda(Q, K, V, O, tile); });
  count_flops(state, 2 * product_flops(1, N, d));
  check_attention(state, to_host(O), in.Q, in.K, in.V, 1e-5);
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d", "Br", "Bc"})->ArgsProduct({{1024, 4096}, {64, 128}, {64}, {64, 256}});
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_tiled_forward_cpu", BM_tiled_forward_cpu)->Apply(cpu_sizes);
  add_cpu("BM_tile_products_cpu", BM_tile_products_cpu)->Apply(cpu_sizes);
  if (gpu_is_there()) {
    add_cuda("BM_tiled_forward_cuda", BM_tiled_forward_cuda)
        ->ArgNames({"N", "d"})
        ->ArgsProduct({{1024}, {64, 128}});
  }
  return run_benchmarks(argc, argv);
}

// Times chapter 06: on the CPU beside the forward pass of chapter 05 and beside the five tile
// products alone, in Eigen and equally parallel; on the device in both forms. Work is counted
// as five products, 10 * N * N * d operations (forward two), half of that when causal; exp is
// not counted, nor what two_passes computes a second time. The limit is the arithmetic
// (BM_limit_product_cpu, BM_limit_multiply_add_cuda of docs/benchmarks); "bytes/s" counts what
// the form moves by the formula, to be held against the memory's limit.
#include "common/bench/bench.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_traffic.hpp"

namespace {

using namespace flash_steps;

struct Trained : Head {
  Trained(Index N, Index d)
      : Head(N, d), dO(random_rows(N, d, 3)), O(N, d), m(N), l(N), LSE(N) {}
  void forward(bool causal) {
    saved_forward_cpu<float>(Q, K, V, O, m, l, LSE, {64, 64}, causal);
  }
  Matrix<float> dO, O;
  Vector<float> m, l, LSE;
};

// The last rows of dQ against naive gradients, and the sum of dV over all keys, which is that
// of dO over all queries.
void check_gradients(benchmark::State& state, const Matrix<float>& dQ, const Matrix<float>& dV,
                     const Trained& in, bool causal) {
  const Index rows = rows_to_check(dQ.rows());
  const auto expected = reference_backward(
      in.Q.bottomRows(rows).cast<double>(), in.K.cast<double>(), in.V.cast<double>(),
      in.dO.bottomRows(rows).cast<double>(), {.causal = causal});
  check_near(state, dQ.bottomRows(rows), expected.dQ, 1e-4);
  check_near(state, dV.colwise().sum(), in.dO.cast<double>().colwise().sum(), 1e-1);
}

void BM_backward_recompute_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  Trained in(N, d);
  in.forward(causal);
  Matrix<float> dQ(N, d), dK(N, d), dV(N, d);
  Vector<float> delta(N);
  time_cpu(state, [&] {
    backward_recompute_cpu<float>(in.Q, in.K, in.V, in.O, in.m, in.l, in.dO, delta, dQ, dK, dV,
                                  {64, 64}, causal);
  });
  count_flops(state, 5 * product_flops(1, N, d, causal));
  check_gradients(state, dQ, dV, in, causal);
}

void BM_saved_forward_cpu(benchmark::State& state, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  Trained in(N, d);
  time_cpu(state, [&] { in.forward(causal); });
  count_flops(state, 2 * product_flops(1, N, d, causal));
}

// The five products of all pairs of tiles, without a mask, and nothing else.
void BM_backward_products_cpu(benchmark::State& state) {
  const Index N = state.range(0), d = state.range(1), B = 64;
  const Trained in(N, d);
  Matrix<float> dQ = Matrix<float>::Zero(N, d), dK = dQ, dV = dQ;
  time_cpu(state, [&] {
#pragma omp parallel for schedule(dynamic)
    for (Index k = 0; k < N; k += B) {
      Matrix<float> P, dS, dQi = Matrix<float>::Zero(B, d);
      for (Index q = 0; q < N; q += B) {
        P.noalias() = in.Q.middleRows(q, B) * in.K.middleRows(k, B).transpose();
        dS.noalias() = in.dO.middleRows(q, B) * in.V.middleRows(k, B).transpose();
        dV.middleRows(k, B).noalias() += P.transpose() * in.dO.middleRows(q, B);
        dQi.noalias() += dS * in.K.middleRows(k, B);
        dK.middleRows(k, B).noalias() += dS.transpose() * in.Q.middleRows(q, B);
      }
      dQ.middleRows(k, B) = dQi;
    }
    benchmark::DoNotOptimize(dQ.data());
  });
  count_flops(state, 5 * product_flops(1, N, d));
}

void BM_backward_recompute_cuda(benchmark::State& state, BackwardForm form, bool causal) {
  const Index N = state.range(0), d = state.range(1);
  const Trained in(N, d);
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V),
             dO = to_device(in.dO);
  DeviceMatrix<float> O(N, d), dQ(N, d), dK(N, d), dV(N, d);
  DeviceArray<float> m(N), l(N), LSE(N), delta(N);
  const Tiling tile = default_backward_tiling(d, device_limits().shared_bytes_per_block);
  saved_forward_cuda(Q, K, V, O, m, l, LSE, {32, 32}, causal);
  time_cuda(state, [&] {
    backward_recompute_cuda(Q, K, V, O, m, l, dO, delta, dQ, dK, dV, tile, causal, {}, nullptr,
                            form);
  });
  count_flops(state, 5 * product_flops(1, N, d, causal));
  const auto counts = form == BackwardForm::two_passes
                          ? predict_two_passes(N, N, d, tile, causal)
                          : predict_atomic_dQ(N, N, d, tile, causal);
  count_bytes(state, 4 * counts.matrices());
  check_gradients(state, to_host(dQ), to_host(dV), in, causal);
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
    const std::string mask = causal ? "causal" : "no_mask", suffix = causal ? "_causal" : "";
    add_cpu("BM_saved_forward_cpu/" + mask, BM_saved_forward_cpu, causal)->Apply(cpu_sizes);
    add_cpu("BM_backward_recompute_cpu/" + mask, BM_backward_recompute_cpu, causal)
        ->Apply(cpu_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_backward_recompute_cuda/two_passes" + suffix, BM_backward_recompute_cuda,
             BackwardForm::two_passes, causal)
        ->Apply(cuda_sizes);
    add_cuda("BM_backward_recompute_cuda/atomic_dQ" + suffix, BM_backward_recompute_cuda,
             BackwardForm::atomic_dQ, causal)
        ->Apply(cuda_sizes);
  }
  add_cpu("BM_backward_products_cpu", BM_backward_products_cpu)->Apply(cpu_sizes);
  return run_benchmarks(argc, argv);
}

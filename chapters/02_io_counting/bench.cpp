// Times chapter 02: counted standard attention and walks on the CPU; on a GPU the three kernels
// of standard attention and the walks. "bytes/s" counts what the formulas say that each moves.
// The limit is the speed of the memory (BM_limit_copy of docs/benchmarks).
#include "common/bench/bench.hpp"
#include "chapters/02_io_counting/io_counting.hpp"
#include "chapters/02_io_counting/io_counting_cuda.hpp"
#include "chapters/02_io_counting/predict.hpp"
#include "chapters/02_io_counting/standard_attention.hpp"
#include "chapters/02_io_counting/standard_attention_cuda.hpp"
#include "common/tensor/ceil_div.hpp"

namespace {

using namespace flash_steps;

constexpr Tiling kTile{.Br = 64, .Bc = 64};

// ---- CPU

struct Walked : Head {
  explicit Walked(const benchmark::State& state)
      : Head(state.range(0), state.range(1)),
        O(Matrix<float>::Zero(Q.rows(), Q.cols())),
        m(Vector<float>::Constant(Q.rows(), -kInf<float>)),
        l(Vector<float>::Zero(Q.rows())) {}
  Matrix<float> O;
  Vector<float> m, l;
};

template <class Run>
void time_counted(benchmark::State& state, const Counts& predicted, const Run& run) {
  if (!(run() == predicted)) return state.SkipWithError("the counts differ from the formula");
  time_cpu(state, run);
  count_bytes(state, 4 * predicted.total());
}

void BM_standard_attention_cpu(benchmark::State& state) {
  Walked h(state);
  time_counted(state, predict_standard(h.Q.rows(), h.K.rows(), h.Q.cols(), kTile),
               [&] { return standard_attention_cpu<float>(h.Q, h.K, h.V, h.O, kTile); });
}
void BM_walk_q_outer_cpu(benchmark::State& state) {
  Walked h(state);
  time_counted(state, predict_q_outer(h.Q.rows(), h.K.rows(), h.Q.cols(), kTile),
               [&] { return walk_q_outer_cpu(h.Q, h.K, h.V, h.O, h.l, kTile); });
}
void BM_walk_kv_outer_cpu(benchmark::State& state) {
  Walked h(state);
  time_counted(state, predict_kv_outer(h.Q.rows(), h.K.rows(), h.Q.cols(), kTile),
               [&] { return walk_kv_outer_cpu(h.Q, h.K, h.V, h.O, h.m, h.l, kTile); });
}

// ---- GPU

struct OnDevice {
  explicit OnDevice(const benchmark::State& state) : OnDevice(Walked(state)) {}
  explicit OnDevice(const Walked& h)
      : N(h.Q.rows()),
        d(h.Q.cols()),
        Q(to_device(h.Q)),
        K(to_device(h.K)),
        V(to_device(h.V)),
        O(to_device(h.O)),
        m(to_device(h.m)),
        l(to_device(h.l)) {}
  Index N, d;
  DeviceMatrix<float> Q, K, V, O;
  DeviceArray<float> m, l;
};

template <class Run>
void time_predicted(benchmark::State& state, const Counts& predicted, const Run& run) {
  time_cuda(state, run);
  count_bytes(state, 4 * predicted.total());
}

// One pass of standard attention moves its part of predict_standard.
void BM_standard_scores_cuda(benchmark::State& state) {
  OnDevice h(state);
  DeviceMatrix<float> S(h.N, h.N);
  const Index moved = h.N * h.d, Tr = ceil_div(h.N, kTile.Br);
  time_predicted(state, {.reads = moved + Tr * moved, .writes = h.N * h.N},
                 [&] { standard_scores_cuda(h.Q, h.K, S, kTile, 0.125f); });
}
void BM_standard_softmax_cuda(benchmark::State& state) {
  const Index N = state.range(0);
  DeviceMatrix<float> S = to_device(random_rows(N, N, 3));
  time_predicted(state, {.reads = N * N, .writes = N * N}, [&] { standard_softmax_cuda(S); });
}
void BM_standard_values_cuda(benchmark::State& state) {
  OnDevice h(state);
  const DeviceMatrix<float> P = to_device(random_rows(h.N, h.N, 3));
  const Index moved = h.N * h.d, Tr = ceil_div(h.N, kTile.Br);
  time_predicted(state, {.reads = h.N * h.N + Tr * moved, .writes = moved},
                 [&] { standard_values_cuda(P, h.V, h.O, kTile); });
}
void BM_standard_attention_cuda(benchmark::State& state) {
  OnDevice h(state);
  time_predicted(state, predict_standard(h.N, h.N, h.d, kTile),
                 [&] { standard_attention_cuda(h.Q, h.K, h.V, h.O, kTile); });
}
void BM_walk_q_outer_cuda(benchmark::State& state) {
  OnDevice h(state);
  time_predicted(state, predict_q_outer(h.N, h.N, h.d, kTile),
                 [&] { walk_q_outer_cuda(h.Q, h.K, h.V, h.O, h.l, kTile); });
}
void BM_walk_kv_outer_cuda(benchmark::State& state) {
  OnDevice h(state);
  time_predicted(state, predict_kv_outer(h.N, h.N, h.d, kTile),
                 [&] { walk_kv_outer_cuda(h.Q, h.K, h.V, h.O, h.m, h.l, kTile); });
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{256, 1024, 4096}, {64, 128}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096, 16384}, {64, 128}});
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_standard_attention_cpu", BM_standard_attention_cpu)->Apply(cpu_sizes);
  add_cpu("BM_walk_q_outer_cpu", BM_walk_q_outer_cpu)->Apply(cpu_sizes);
  add_cpu("BM_walk_kv_outer_cpu", BM_walk_kv_outer_cpu)->Apply(cpu_sizes);
  if (gpu_is_there()) {
    add_cuda("BM_standard_scores_cuda", BM_standard_scores_cuda)->Apply(cuda_sizes);
    add_cuda("BM_standard_softmax_cuda", BM_standard_softmax_cuda)->Apply(cuda_sizes);
    add_cuda("BM_standard_values_cuda", BM_standard_values_cuda)->Apply(cuda_sizes);
    add_cuda("BM_standard_attention_cuda", BM_standard_attention_cuda)->Apply(cuda_sizes);
    add_cuda("BM_walk_q_outer_cuda", BM_walk_q_outer_cuda)->Apply(cuda_sizes);
    add_cuda("BM_walk_kv_outer_cuda", BM_walk_kv_outer_cuda)->Apply(cuda_sizes);
  }
  return run_benchmarks(argc, argv);
}

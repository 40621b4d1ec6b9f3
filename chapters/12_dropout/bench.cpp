// Times chapter 12 beside chapter 07, which drops nothing: what the mask costs, computed and
// stored. Work is counted as 4 * N * N * d operations a head forward (two products) and
// 10 * N * N * d backward (five), half of that when causal; exp and Philox are not counted.
#include <benchmark/benchmark.h>

#include <chrono>
#include <optional>

#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/12_dropout/dropout_backward.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using Heads = HeadsArray<float>;
using Bytes = HeadsArray<std::uint8_t>;

// Where the mask comes from.
enum Source { none, computed, stored };

const Dropout kDropout{.p = 0.1, .seed = 7, .offset = 1};
constexpr Index kHeads = 4;

Heads random_heads(Index N, Index d, std::uint64_t which) {
  Heads heads(1, kHeads, N, d);
  for (Index h = 0; h < kHeads; ++h) {
    heads.head(0, h) = random_matrix<float>(N, d, which, static_cast<std::uint64_t>(h));
  }
  return heads;
}

struct Problem {
  Problem(Index N, Index d)
      : Q(random_heads(N, d, 0)),
        K(random_heads(N, d, 1)),
        V(random_heads(N, d, 2)),
        dO(random_heads(N, d, 3)),
        mask(1, kHeads, N, N) {
    dropout_mask_cpu(mask.view(), kDropout);
  }
  Heads Q, K, V, dO;
  Bytes mask;
};

void count_flops(benchmark::State& state, double products) {
  const double N = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  state.counters["FLOP/s"] = benchmark::Counter(products * 2 * N * N * d * kHeads,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

// A wrong result is not worth timing: the last 8 rows of the last head against naive attention
// in float64.
bool is_right(const Heads& O, const Problem& x, Source source) {
  const Index N = x.Q.N(), h = kHeads - 1;
  const Matrix<double> Q = x.Q.head(0, h).bottomRows(8).cast<double>();
  const Matrix<std::uint8_t> mask = x.mask.head(0, h).bottomRows(8);
  ReferenceOptions options;
  if (source != none) options.dropout = kDropout.p;
  if (source != none) options.mask = &mask;
  const auto expected = reference_attention(Q, x.K.head(0, h).cast<double>(),
                                            x.V.head(0, h).cast<double>(), options);
  return N >= 8 && (O.head(0, h).bottomRows(8).cast<double>() - expected.O)
                           .cwiseAbs()
                           .maxCoeff<Eigen::PropagateNaN>() <= 1e-4;
}

void forward_cpu(const Problem& x, Source source, Heads& O, Matrix<float>& LSE) {
  const HeadsView<const std::uint8_t> mask = x.mask.view();
  if (source == none) {
    batched_forward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O.view(), LSE);
  } else {
    dropout_forward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O.view(), LSE, kDropout, {},
                               false, {}, source == stored ? &mask : nullptr);
  }
}

void BM_dropout_forward_cpu(benchmark::State& state, Source source) {
  const Index N = state.range(0), d = state.range(1);
  const Problem x(N, d);
  Heads O(1, kHeads, N, d);
  Matrix<float> LSE(kHeads, N);
  for (auto _ : state) forward_cpu(x, source, O, LSE);
  count_flops(state, 2);
  if (!is_right(O, x, source)) state.SkipWithError("wrong result");
}

void BM_dropout_backward_cpu(benchmark::State& state, Source source) {
  const Index N = state.range(0), d = state.range(1);
  const Problem x(N, d);
  Heads O(1, kHeads, N, d), dQ = O, dK = O, dV = O;
  Matrix<float> LSE(kHeads, N), delta(kHeads, N);
  forward_cpu(x, source, O, LSE);
  const HeadsView<const float> O_view = O.view();
  const HeadsView<const std::uint8_t> mask = x.mask.view();
  for (auto _ : state) {
    if (source == none) {
      batched_backward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O_view, LSE, x.dO.view(),
                                  delta, dQ.view(), dK.view(), dV.view());
    } else {
      dropout_backward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O_view, LSE, x.dO.view(),
                                  delta, dQ.view(), dK.view(), dV.view(), kDropout, {}, false,
                                  {}, source == stored ? &mask : nullptr);
    }
  }
  count_flops(state, 5);
  if (!is_right(O, x, source)) state.SkipWithError("wrong result");
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
template <class Work>
void time_device(benchmark::State& state, Work&& work) {
  work();
  synchronize_device();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    work();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

// The problem, and room for results, on the device.
struct OnDevice {
  explicit OnDevice(const Problem& x)
      : Q(to_device(x.Q)),
        K(to_device(x.K)),
        V(to_device(x.V)),
        dO(to_device(x.dO)),
        O(Q.layout()),
        dQ(Q.layout()),
        dK(K.layout()),
        dV(V.layout()),
        LSE(kHeads, x.Q.N()),
        delta(kHeads, x.Q.N()),
        mask(to_device(x.mask)) {
    const std::int64_t shared_bytes = device_limits().shared_bytes_per_block;
    tile = default_backward_tiling(x.Q.d(), shared_bytes);
  }
  void forward(Source source) {
    if (source == none) {
      batched_forward_cuda(Q, K, V, O, LSE, tile);
    } else {
      dropout_forward_cuda(Q, K, V, O, LSE, kDropout, tile, false, {},
                           source == stored ? &mask : nullptr);
    }
  }
  void backward(Source source) {
    if (source == none) {
      batched_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile);
    } else {
      dropout_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, kDropout, tile, false, {},
                            source == stored ? &mask : nullptr);
    }
  }
  DeviceHeads<float> Q, K, V, dO, O, dQ, dK, dV;
  DeviceMatrix<float> LSE, delta;
  DeviceHeads<std::uint8_t> mask;
  Tiling tile;
};

bool no_device(benchmark::State& state) {
  if (!device_available()) state.SkipWithError("this build wants a GPU, and there is none");
  return !device_available();
}

void BM_dropout_forward_cuda(benchmark::State& state, Source source) {
  if (no_device(state)) return;
  const Problem x(state.range(0), state.range(1));
  OnDevice device(x);
  time_device(state, [&] { device.forward(source); });
  count_flops(state, 2);
  if (!is_right(to_host(device.O), x, source)) state.SkipWithError("wrong result");
}

void BM_dropout_backward_cuda(benchmark::State& state, Source source) {
  if (no_device(state)) return;
  const Problem x(state.range(0), state.range(1));
  OnDevice device(x);
  device.forward(source);
  time_device(state, [&] { device.backward(source); });
  count_flops(state, 5);
  if (!is_right(to_host(device.O), x, source)) state.SkipWithError("wrong result");
}

// The mask alone, written as bytes: a fourth of a Philox call a weight. On a GPU the limit is
// the memory's bandwidth.
void count_weights(benchmark::State& state, const Bytes& mask, Index N) {
  const double weights = static_cast<double>(kHeads * N * N);
  state.counters["bytes/s"] =
      benchmark::Counter(weights, benchmark::Counter::kIsIterationInvariantRate);
  double kept = 0;
  for (const std::uint8_t bit : mask.elements()) kept += bit;
  if (!(std::abs(kept / weights - 0.9) < 0.01)) state.SkipWithError("wrong result");
}

void BM_dropout_mask_cpu(benchmark::State& state) {
  Bytes mask(1, kHeads, state.range(0), state.range(0));
  for (auto _ : state) dropout_mask_cpu(mask.view(), kDropout);
  count_weights(state, mask, state.range(0));
}
void BM_dropout_mask_cuda(benchmark::State& state) {
  if (no_device(state)) return;
  DeviceHeads<std::uint8_t> mask(1, kHeads, state.range(0), state.range(0));
  time_device(state, [&] { dropout_mask_cuda(mask, kDropout); });
  count_weights(state, to_host(mask), state.range(0));
}

void cpu_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})
      ->ArgsProduct({{1024, 2048}, {64, 128}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_dropout_forward_cpu, none, none)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_dropout_forward_cpu, computed, computed)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_dropout_forward_cpu, stored, stored)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cpu, none, none)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cpu, computed, computed)->Apply(cpu_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cpu, stored, stored)->Apply(cpu_grid);
BENCHMARK(BM_dropout_mask_cpu)->ArgName("N")->Arg(2048)->UseRealTime();

// The simulator needs seconds for what a GPU does in milliseconds.
void device_grid(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "d"})->UseManualTime()->Unit(benchmark::kMillisecond);
  if (std::string(device_kind()) == "cuda") {
    b->ArgsProduct({{1024, 4096}, {64, 128}});
  } else {
    b->Args({128, 64});
  }
}
BENCHMARK_CAPTURE(BM_dropout_forward_cuda, none, none)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_dropout_forward_cuda, computed, computed)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_dropout_forward_cuda, stored, stored)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cuda, none, none)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cuda, computed, computed)->Apply(device_grid);
BENCHMARK_CAPTURE(BM_dropout_backward_cuda, stored, stored)->Apply(device_grid);
BENCHMARK(BM_dropout_mask_cuda)
    ->ArgName("N")
    ->Arg(std::string(device_kind()) == "cuda" ? 16384 : 128)
    ->UseManualTime();

}  // namespace

BENCHMARK_MAIN();

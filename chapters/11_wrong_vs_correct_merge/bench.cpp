// Times the merge of T parts of d channels, rule by rule, and softmax by blocks.
//
// "bytes" is what must pass through memory, per second: 4 bytes for each number of m, l and o,
// read once; for scores, read twice and written once. The limit on the CPU is a loop that only
// adds up the rows of o; on a GPU one block works, so that it is the time of T steps in a row.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>

#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

struct Parts {
  Vector<float> m, l;  // (T)
  Matrix<float> o;     // (T, d)
};

// Maxima near 0, so that every rule stays in range.
Parts random_parts(Index T, Index d) {
  return {random_matrix<float>(T, 1, 0, 0, 3.0),
          random_matrix<float>(T, 1, 0, 1).array().abs() + 1, random_matrix<float>(T, d, 0, 2)};
}

// Whether O is what the correct rule gives in float64. Not asked of no_rescale, which is wrong.
bool is_right(const Vector<float>& O, const Parts& parts) {
  Vector<double> right(O.size());
  merge_parts_cpu<double>(parts.m.cast<double>(), parts.l.cast<double>(),
                          parts.o.cast<double>(), right);
  return (O.cast<double>() - right).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() <= 1e-5;
}

void count_bytes(benchmark::State& state, double bytes) {
  state.counters["bytes"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

void count_parts(benchmark::State& state) {
  const double T = static_cast<double>(state.range(0)), d = static_cast<double>(state.range(1));
  count_bytes(state, 4 * T * (d + 2));
}

void BM_merge_parts_cpu(benchmark::State& state, MergeRule rule) {
  const Parts parts = random_parts(state.range(0), state.range(1));
  Vector<float> O(state.range(1));
  for (auto _ : state) {
    merge_parts_cpu<float>(parts.m, parts.l, parts.o, O, rule);
    benchmark::ClobberMemory();
  }
  count_parts(state);
  if (rule != MergeRule::no_rescale && !is_right(O, parts)) {
    state.SkipWithError("wrong result");
  }
}

// The yardstick: the same numbers added up without weights.
void BM_add_rows_cpu(benchmark::State& state) {
  const Parts parts = random_parts(state.range(0), state.range(1));
  Vector<float> O(state.range(1));
  for (auto _ : state) {
    O.setZero();
    for (Index t = 0; t < parts.o.rows(); ++t) O += parts.o.row(t).transpose();
    benchmark::ClobberMemory();
  }
  count_parts(state);
}

void BM_merge_scores_cpu(benchmark::State& state) {
  const Index N = state.range(0), Bc = state.range(1);
  const Vector<float> x = random_matrix<float>(N, 1, 0, 0);
  Vector<float> p(N);
  for (auto _ : state) {
    merge_scores_cpu<float>(x, p, Bc);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 12 * static_cast<double>(N));
  if (!(std::abs(p.cast<double>().sum() - 1) <= 1e-5)) state.SkipWithError("wrong result");
}

// The device of the build; simulated, the time says nothing about a GPU. Timed over whole
// launches.
template <class Run>
void time_device(benchmark::State& state, const Run& run) {
  run();
  for (auto _ : state) {
    synchronize_device();
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize_device();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

bool no_device(benchmark::State& state) {
  if (!device_available()) state.SkipWithError("this build wants a GPU, and there is none");
  return !device_available();
}

void BM_merge_parts_cuda(benchmark::State& state, MergeRule rule) {
  if (no_device(state)) return;
  const Parts parts = random_parts(state.range(0), state.range(1));
  const auto m = to_device(parts.m), l = to_device(parts.l);
  const auto o = to_device(parts.o);
  DeviceArray<float> O(state.range(1)), ml(2);
  time_device(state, [&] { merge_parts_cuda(m, l, o, O, ml, rule); });
  count_parts(state);
  if (rule != MergeRule::no_rescale && !is_right(to_host(O), parts)) {
    state.SkipWithError("wrong result");
  }
}

void BM_merge_scores_cuda(benchmark::State& state) {
  if (no_device(state)) return;
  const Index N = state.range(0), Bc = state.range(1);
  const DeviceArray<float> x = to_device(Vector<float>(random_matrix<float>(N, 1, 0, 0)));
  DeviceArray<float> p(N), ml(2);
  time_device(state, [&] { merge_scores_cuda(x, p, ml, Bc); });
  count_bytes(state, 12 * static_cast<double>(N));
  if (!(std::abs(to_host(p).cast<double>().sum() - 1) <= 1e-5)) {
    state.SkipWithError("wrong result");
  }
}

// ---- what is timed

void part_sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "d"})->Args({8, 128})->Args({128, 128})->Args({8192, 128})->UseRealTime();
}
BENCHMARK_CAPTURE(BM_merge_parts_cpu, correct, MergeRule::correct)->Apply(part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cpu, stale_max, MergeRule::stale_max)->Apply(part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cpu, no_rescale, MergeRule::no_rescale)->Apply(part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cpu, fixed_max, MergeRule::fixed_max)->Apply(part_sizes);
BENCHMARK(BM_add_rows_cpu)->Apply(part_sizes);
BENCHMARK(BM_merge_scores_cpu)
    ->ArgNames({"N", "Bc"})
    ->ArgsProduct({{1 << 16}, {16, 64, 1024}})
    ->UseRealTime();

// The simulator needs seconds for what a GPU does in milliseconds.
const bool on_gpu = std::string(device_kind()) == "cuda";

void device_part_sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "d"})->UseManualTime()->Args({8, 128})->Args({128, 128});
  if (on_gpu) b->Args({8192, 128});
}
BENCHMARK_CAPTURE(BM_merge_parts_cuda, correct, MergeRule::correct)->Apply(device_part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cuda, stale_max, MergeRule::stale_max)
    ->Apply(device_part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cuda, no_rescale, MergeRule::no_rescale)
    ->Apply(device_part_sizes);
BENCHMARK_CAPTURE(BM_merge_parts_cuda, fixed_max, MergeRule::fixed_max)
    ->Apply(device_part_sizes);
BENCHMARK(BM_merge_scores_cuda)
    ->ArgNames({"N", "Bc"})
    ->UseManualTime()
    ->ArgsProduct({{on_gpu ? 1 << 16 : 1 << 12}, {16, 64, 1024}});

}  // namespace

BENCHMARK_MAIN();

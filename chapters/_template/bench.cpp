// Times chapter NN on the CPU.
#include <benchmark/benchmark.h>

#include "template.hpp"

#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;

void BM_scale_cpu(benchmark::State& state) {
  const Vector<float> x = random_matrix<float>(state.range(0), 1, 0, 0);
  Vector<float> y(x.size());
  scale_cpu<float>(x, y, 2.0f);
  if (y != 2.0f * x) return state.SkipWithError("wrong result");
  for (auto _ : state) {
    scale_cpu<float>(x, y, 2.0f);
    benchmark::ClobberMemory();
  }
  // an element is read and an element is written, of 4 bytes each
  state.counters["bytes"] = benchmark::Counter(8.0 * static_cast<double>(x.size()),
                                               benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_scale_cpu)->ArgName("N")->Arg(1 << 10)->Arg(1 << 20)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();

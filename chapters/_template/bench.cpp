// Times chapter NN on the CPU. An element is read and an element is written, of 4 bytes each:
// the limit is the speed of the memory (BM_limit_copy_cpu of docs/benchmarks).
#include "common/bench/bench.hpp"
#include "template.hpp"

namespace {

using namespace flash_steps;

void BM_scale_cpu(benchmark::State& state) {
  const Vector<float> x = random_rows(state.range(0), 1, 0);
  Vector<float> y(x.size());
  time_cpu(state, [&] { scale_cpu<float>(x, y, 2.0f); });
  count_bytes(state, 8 * x.size());
  check_near(state, y, 2.0 * x.cast<double>(), 0.0);
}

}  // namespace

int main(int argc, char** argv) {
  add_cpu("BM_scale_cpu", BM_scale_cpu)->ArgName("N")->Arg(1 << 10)->Arg(1 << 20);
  return run_benchmarks(argc, argv);
}

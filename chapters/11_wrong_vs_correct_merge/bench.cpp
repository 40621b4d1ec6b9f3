// Times the merge of T parts of d channels, rule by rule, and softmax by blocks.
//
// "bytes/s" counts what must pass through memory: 4 bytes for each number of m, l and o, read
// once; for scores, read twice and written once. The limit on the CPU is a loop that only adds
// up the rows of o; on a GPU one block works, so that it is the time of T steps in a row.
#include "common/bench/bench.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"

namespace {

using namespace flash_steps;

// Maxima near 0, so that every rule stays in range.
struct Parts {
  Parts(Index T, Index d)
      : m(3 * random_rows(T, 1, 0)),
        l(random_rows(T, 1, 1).array().abs() + 1),
        o(random_rows(T, d, 2)) {}
  Index bytes() const { return 4 * (m.size() + l.size() + o.size()); }
  Vector<float> m, l;  // (T)
  Matrix<float> o;     // (T, d)
};

// O against the correct rule in float64. Not asked of no_rescale, which is wrong.
void check_merge(benchmark::State& state, const Vector<float>& O, const Parts& parts,
                 MergeRule rule) {
  if (rule == MergeRule::no_rescale) return;
  Vector<double> right(O.size());
  merge_parts_cpu<double>(parts.m.cast<double>(), parts.l.cast<double>(),
                          parts.o.cast<double>(), right);
  check_near(state, O, right, 1e-5);
}

void check_sum(benchmark::State& state, const Vector<float>& p) {
  check_near(state, Vector<double>::Constant(1, p.cast<double>().sum()),
             Vector<double>::Ones(1), 1e-5);
}

void BM_merge_parts_cpu(benchmark::State& state, MergeRule rule) {
  const Parts parts(state.range(0), state.range(1));
  Vector<float> O(state.range(1));
  time_cpu(state, [&] { merge_parts_cpu<float>(parts.m, parts.l, parts.o, O, rule); });
  count_bytes(state, parts.bytes());
  check_merge(state, O, parts, rule);
}

// The yardstick: the same numbers added up without weights.
void BM_add_rows_cpu(benchmark::State& state) {
  const Parts parts(state.range(0), state.range(1));
  Vector<float> O(state.range(1));
  time_cpu(state, [&] {
    O.setZero();
    for (Index t = 0; t < parts.o.rows(); ++t) O += parts.o.row(t).transpose();
  });
  count_bytes(state, parts.bytes());
}

void BM_merge_scores_cpu(benchmark::State& state) {
  const Index N = state.range(0), Bc = state.range(1);
  const Vector<float> x = random_rows(N, 1, 0);
  Vector<float> p(N);
  time_cpu(state, [&] { merge_scores_cpu<float>(x, p, Bc); });
  count_bytes(state, 12 * N);
  check_sum(state, p);
}

void BM_merge_parts_cuda(benchmark::State& state, MergeRule rule) {
  const Parts parts(state.range(0), state.range(1));
  const auto m = to_device(parts.m), l = to_device(parts.l);
  const auto o = to_device(parts.o);
  DeviceArray<float> O(state.range(1)), ml(2);
  time_cuda(state, [&] { merge_parts_cuda(m, l, o, O, ml, rule); });
  count_bytes(state, parts.bytes());
  check_merge(state, to_host(O), parts, rule);
}

void BM_merge_scores_cuda(benchmark::State& state) {
  const Index N = state.range(0), Bc = state.range(1);
  const DeviceArray<float> x = to_device(Vector<float>(random_rows(N, 1, 0)));
  DeviceArray<float> p(N), ml(2);
  time_cuda(state, [&] { merge_scores_cuda(x, p, ml, Bc); });
  count_bytes(state, 12 * N);
  check_sum(state, to_host(p));
}

void part_sizes(Benchmark* b) {
  b->ArgNames({"T", "d"})->ArgsProduct({{8, 128, 8192}, {128}})->Unit(benchmark::kMicrosecond);
}
void score_sizes(Benchmark* b) {
  b->ArgNames({"N", "Bc"})
      ->ArgsProduct({{1 << 16}, {16, 64, 1024}})
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<std::string, MergeRule> rules[] = {{"correct", MergeRule::correct},
                                                     {"stale_max", MergeRule::stale_max},
                                                     {"no_rescale", MergeRule::no_rescale},
                                                     {"fixed_max", MergeRule::fixed_max}};
  for (const auto& [name, rule] : rules) {
    add_cpu("BM_merge_parts_cpu/" + name, BM_merge_parts_cpu, rule)->Apply(part_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_merge_parts_cuda/" + name, BM_merge_parts_cuda, rule)->Apply(part_sizes);
  }
  add_cpu("BM_add_rows_cpu", BM_add_rows_cpu)->Apply(part_sizes);
  add_cpu("BM_merge_scores_cpu", BM_merge_scores_cpu)->Apply(score_sizes);
  if (gpu_is_there()) {
    add_cuda("BM_merge_scores_cuda", BM_merge_scores_cuda)->Apply(score_sizes);
  }
  return run_benchmarks(argc, argv);
}

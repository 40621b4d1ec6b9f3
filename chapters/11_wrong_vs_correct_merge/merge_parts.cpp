#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"

#include <algorithm>
#include <cmath>

#include "chapters/01_online_softmax/online_softmax.hpp"

namespace flash_steps {
namespace {

// What the sums are relative to from now on, and the factor that takes the old ones there.
template <class T>
struct Rescale {
  T m, alpha;
};

// m is the maximum of the new part.
template <class T>
Rescale<T> rescale(MergeRule rule, const Part<T>& old, T m, T fixed) {
  // [begin 11.rules]
  const T larger = std::max(old.m, m);
  if (rule == MergeRule::stale_max) return {old.l == T(0) ? m : old.m, T(1)};
  if (rule == MergeRule::no_rescale) return {larger, T(1)};
  if (rule == MergeRule::fixed_max) return {fixed, T(1)};
  return {larger, std::exp(old.m - larger)};  // 0 for the first part, 1 if old.m is the larger
  // [end]
}

}  // namespace

template <class T>
void merge_part(Part<T>& sum, T m, T l, VectorIn<T> o, MergeRule rule, T fixed) {
  // [begin 11.merge-part]
  if (l == T(0)) return;  // empty: l says so, before m and o are looked at

  const auto [m_new, alpha] = rescale(rule, sum, m, fixed);
  const T beta = std::exp(m - m_new);  // the new part, relative to m_new
  sum.l = alpha * sum.l + beta * l;    // [9]
  sum.o = alpha * sum.o + beta * o;    // [10]
  sum.m = m_new;
  // [end]
}

template <class T>
SoftmaxState<T> merge_parts_cpu(VectorIn<T> m, VectorIn<T> l, MatrixIn<T> o, VectorOut<T> O,
                                MergeRule rule, double fixed_max) {
  require_part_shapes(m.size(), l.size(), {o.rows(), o.cols()}, O.size());
  const T fixed = resolve_fixed_max<T>(fixed_max);

  // [begin 11.merge-parts]
  Part<T> sum(o.cols());                  // [5]
  for (Index t = 0; t < m.size(); ++t) {  // [6]
    merge_part<T>(sum, m[t], l[t], o.row(t).transpose(), rule, fixed);
  }
  if (nothing_merged(sum.m, sum.l)) {
    O.setZero();  // no key at all: 0, not 0/0
  } else {
    O = sum.o / sum.l;  // [12]
  }
  // [end]
  return {sum.m, sum.l};
}

template <class T>
SoftmaxState<T> merge_scores_cpu(VectorIn<T> x, VectorOut<T> p, Index Bc, MergeRule rule,
                                 double fixed_max) {
  require_score_sizes(x.size(), p.size(), Bc);
  const T fixed = resolve_fixed_max<T>(fixed_max);
  const Index N = x.size();
  const Vector<T> no_values(0);

  // [begin 11.merge-scores]
  Part<T> sum(0);
  for (Index start = 0; start < N; start += Bc) {
    const Index count = std::min(Bc, N - start);  // the last block may be short
    const SoftmaxState<T> block = softmax_state<T>(x.segment(start, count));
    merge_part<T>(sum, block.m, block.l, no_values, rule, fixed);
  }
  const bool nothing = nothing_merged(sum.m, sum.l);
  for (Index i = 0; i < N; ++i) p[i] = nothing ? T(0) : std::exp(x[i] - sum.m) / sum.l;
  // [end]
  return {sum.m, sum.l};
}

template void merge_part<float>(Part<float>&, float, float, VectorIn<float>, MergeRule, float);
template SoftmaxState<float> merge_parts_cpu<float>(VectorIn<float>, VectorIn<float>,
                                                    MatrixIn<float>, VectorOut<float>,
                                                    MergeRule, double);
template SoftmaxState<float> merge_scores_cpu<float>(VectorIn<float>, VectorOut<float>, Index,
                                                     MergeRule, double);
template void merge_part<double>(Part<double>&, double, double, VectorIn<double>, MergeRule,
                                 double);
template SoftmaxState<double> merge_parts_cpu<double>(VectorIn<double>, VectorIn<double>,
                                                      MatrixIn<double>, VectorOut<double>,
                                                      MergeRule, double);
template SoftmaxState<double> merge_scores_cpu<double>(VectorIn<double>, VectorOut<double>,
                                                       Index, MergeRule, double);

}  // namespace flash_steps

// Chapter 11: merging the parts of a softmax, by the rule that is right and by three others, on
// the CPU.
//
//   part t, with keys of its own, scores s_j and values v_j:
//   m_t = max_j s_j,   l_t = sum_j exp(s_j - m_t),   o_t = sum_j exp(s_j - m_t) v_j   (d)
//
//   m   = max_t m_t
//   l   = sum_t exp(m_t - m) l_t
//   O   = sum_t exp(m_t - m) o_t / l    (d)
//   LSE = m + ln l                      natural logarithm
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691), with a part
// in the place of a key tile.
//
// A part with l = 0 is empty and is skipped, whatever its m and o hold. Every other part has
// m > -inf, or NaN somewhere: NaN in m or l makes l, LSE and O NaN (m is then unspecified), NaN
// in o_tc makes O_c NaN. Without a part that is not empty m = -inf, l = 0, LSE = -inf and O =
// 0.
#pragma once

#include "chapters/01_online_softmax/softmax_state.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_rule.hpp"
#include "common/tensor/matrix.hpp"

namespace flash_steps {

// A part, or what has been merged so far, which is a part again. A new one is empty.
template <class T>
struct Part {
  explicit Part(Index d) : o(Vector<T>::Zero(d)) {}

  T m = -kInf<T>;  // what l and o are relative to
  T l = 0;
  Vector<T> o;  // (d) not divided by l; d = 0 where only m and l are of interest
};

// Takes the part (m, l, o) into `sum`, o (d). With the correct rule the order and the grouping
// of parts change the result by rounding only. `fixed` is the maximum of MergeRule::fixed_max,
// finite; the other rules ignore it.
template <class T>
void merge_part(Part<T>& sum, T m, T l, VectorIn<T> o, MergeRule rule = MergeRule::correct,
                T fixed = 0);

// Merges T parts in their order: m, l (T), o (T, d) -> O (d), divided by l; T = float or
// double, 1 <= d <= 256, T may be 0. Returns m and l; LSE is lse() of them (chapter 01). Each
// part may add a rounding error of 2^-24 (float) to l and O. Throws std::invalid_argument for
// shapes that do not fit, or a fixed maximum not finite in T.
template <class T>
SoftmaxState<T> merge_parts_cpu(VectorIn<T> m, VectorIn<T> l, MatrixIn<T> o, VectorOut<T> O,
                                MergeRule rule = MergeRule::correct, double fixed_max = 0);

// Softmax by blocks: the scores x (N) are cut into blocks of Bc, the last may be short, and
// each block's m and l are a part. p_i = exp(x_i - m) / l, x (N) -> p (N), N may be 0; p may be
// x. Returns m and l. Throws std::invalid_argument if the sizes differ, if Bc < 1, or for a
// fixed maximum not finite in T.
template <class T>
SoftmaxState<T> merge_scores_cpu(VectorIn<T> x, VectorOut<T> p, Index Bc,
                                 MergeRule rule = MergeRule::correct, double fixed_max = 0);

}  // namespace flash_steps

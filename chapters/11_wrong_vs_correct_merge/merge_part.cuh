// One part's merge on the device: what merge_parts.hpp's Part and merge_part are on the CPU.
#pragma once

#include "chapters/11_wrong_vs_correct_merge/merge_rule.hpp"
#include "common/device/kernel.hpp"

namespace flash_steps {

// One thread's share of a part, or of what has been merged so far: m and l, the same in all
// threads, and one channel of o. A new one is empty.
struct PartChannel {
  float m = -INFINITY;  // what l and o are relative to
  float l = 0.0f;
  float o = 0.0f;  // not divided by l
};

// What the sums are relative to from now on, and the factor that takes the old ones there.
struct ChannelRescale {
  float m, alpha;
};

// m is the maximum of the new part. The rule is known to the compiler, which keeps one line.
template <MergeRule rule>
__device__ ChannelRescale rescale(const PartChannel& old, float m, float fixed) {
  // [begin 11.rules-cuda]
  const float larger = fmaxf(old.m, m);
  if (rule == MergeRule::stale_max) return {old.l == 0.0f ? m : old.m, 1.0f};
  if (rule == MergeRule::no_rescale) return {larger, 1.0f};
  if (rule == MergeRule::fixed_max) return {fixed, 1.0f};
  return {larger, expf(old.m - larger)};  // 0 for the first part, 1 if old.m is the larger
  // [end]
}

// Takes the part (m, l, o) into `sum`. `fixed` is the maximum of MergeRule::fixed_max.
template <MergeRule rule = MergeRule::correct>
__device__ void merge_part(PartChannel& sum, float m, float l, float o, float fixed = 0.0f) {
  // [begin 11.merge-part-cuda]
  if (l == 0.0f) return;  // empty: l says so, before m and o are looked at

  const auto [m_new, alpha] = rescale<rule>(sum, m, fixed);
  const float beta = expf(m - m_new);  // the new part, relative to m_new
  sum.l = alpha * sum.l + beta * l;    // [9]
  sum.o = alpha * sum.o + beta * o;    // [10]
  sum.m = m_new;
  // [end]
}

}  // namespace flash_steps

// Merging on the CPU and on the device, from and to arrays that lie on the host.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"
#include "common/device/eigen.hpp"

namespace flash_steps {

template <class T>
struct Parts {
  Vector<T> m, l;  // (T)
  Matrix<T> o;     // (T, d)
};

// What comes out: O (d) of parts, or p (N) of scores.
template <class T>
struct Merged {
  Vector<T> values;
  SoftmaxState<T> state;
};

template <class T>
Merged<T> merge_on_cpu(const Parts<T>& parts, MergeRule rule, double fixed_max = 0) {
  Merged<T> merged{Vector<T>(parts.o.cols()), {}};
  merged.state = merge_parts_cpu<T>(parts.m, parts.l, parts.o, merged.values, rule, fixed_max);
  return merged;
}

inline Merged<float> merge_on_device(const Parts<float>& parts, MergeRule rule,
                                     double fixed_max) {
  DeviceArray<float> O(parts.o.cols()), state(2);
  merge_parts_cuda(to_device(parts.m), to_device(parts.l), to_device(parts.o), O, state, rule,
                   fixed_max);
  const Vector<float> ml = to_host(state);
  return {to_host(O), {ml[0], ml[1]}};
}

template <class T>
Merged<T> merge_on_cpu(const Vector<T>& x, Index Bc, MergeRule rule, double fixed_max = 0) {
  Merged<T> merged{Vector<T>(x.size()), {}};
  merged.state = merge_scores_cpu<T>(x, merged.values, Bc, rule, fixed_max);
  return merged;
}

inline Merged<float> merge_on_device(const Vector<float>& x, Index Bc, MergeRule rule,
                                     double fixed_max) {
  DeviceArray<float> p(x.size()), state(2);
  merge_scores_cuda(to_device(x), p, state, Bc, rule, fixed_max);
  const Vector<float> ml = to_host(state);
  return {to_host(p), {ml[0], ml[1]}};
}

// A number in a table; NaN without a sign, which differs between machines.
inline std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return std::isnan(value) ? "nan" : buffer;
}

}  // namespace flash_steps

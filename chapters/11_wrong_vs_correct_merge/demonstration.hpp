// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "chapters/11_wrong_vs_correct_merge/merge.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"

namespace flash_steps {

using cli::print;

struct NamedRule {
  const char* name;
  MergeRule rule;
  double fixed_max;
};
inline const NamedRule kRules[] = {{"correct", MergeRule::correct, 0},
                                   {"stale_max", MergeRule::stale_max, 0},
                                   {"no_rescale", MergeRule::no_rescale, 0},
                                   {"fixed_max 30", MergeRule::fixed_max, 30},
                                   {"fixed_max 130", MergeRule::fixed_max, 130}};

// Two parts of one key each: scores first and second, values 1 and 2.
template <class T>
Parts<T> two_parts(double first, double second) {
  Parts<T> parts{Vector<T>(2), Vector<T>::Ones(2), Matrix<T>(2, 1)};
  parts.m << static_cast<T>(first), static_cast<T>(second);
  parts.o << 1, 2;
  return parts;
}

inline void narrate_two_parts() {
  print(
      "A row of attention, computed in two parts that have not seen each other's keys:\n\n"
      "  part    maximum m    l = sum exp(s - m)    o = sum exp(s - m) v\n"
      "     1           10                     1                       1\n"
      "     2           20                     1                       2\n\n"
      "Right is (e^10 * 1 + e^20 * 2) / (e^10 + e^20) = 1.99995. What four rules make of it "
      "in float32:\n\n"
      "                   m           l           o      o / l        LSE\n");
  for (const auto& [name, rule, fixed_max] : kRules) {
    const Parts<float> parts = two_parts<float>(10, 20);
    Part<float> sum(1);
    for (Index t = 0; t < 2; ++t) {
      merge_part<float>(sum, parts.m[t], parts.l[t], parts.o.row(t).transpose(), rule,
                        static_cast<float>(fixed_max));
    }
    print("  {:<13} {:>4.0f} {:>11} {:>11} {:>10} {:>10}\n", name, sum.m, text("%.6g", sum.l),
          text("%.6g", sum.o[0]), text("%.6f", sum.o[0] / sum.l),
          text("%.4f", sum.m + std::log(sum.l)));
  }
  print("\n");
}

template <class T>
void tabulate(const char* type, const std::vector<double>& gaps) {
  print("{:<8} gap   ", type);
  for (const NamedRule& rule : kRules) print("{:>15}", rule.name);
  print("\n");
  for (const double gap : gaps) {
    print("{:>12.0f}   ", gap);
    const double exact = 2 - 1 / (1 + std::exp(gap));
    for (const auto& [name, rule, fixed_max] : kRules) {
      const Merged<T> merged = merge_on_cpu(two_parts<T>(10, 10 + gap), rule, fixed_max);
      const double error = std::abs(double{merged.values[0]} - exact);
      print("{:>15}", text("%.1e", error));
      if (rule == MergeRule::correct && !(error <= 1e-6)) {
        throw cli::CheckFailed("the correct rule is wrong at a gap of " + text("%.0f", gap));
      }
    }
    print("\n");
  }
  print("\n");
}

inline void show_table() {
  print(
      "How far o / l is from the truth when part 2 has the maximum 10 + gap. (At gap -10 the "
      "larger\nmaximum comes first.)\n\n");
  const std::vector<double> gaps{-10, 1, 10, 50, 88, 89, 200, 700, 710};
  tabulate<float>("float32", gaps);
  tabulate<double>("float64", gaps);
}

inline void narrate_scores() {
  Vector<float> x(4);
  x << 1, 3, 2, 4;
  print(
      "From scores, block by block: x = 1, 3, 2, 4 in blocks of 2. Weights exp(x - m) / l:\n\n"
      "                   m         l    weights                             sum\n");
  for (const auto& [name, rule, fixed_max] : kRules) {
    const auto [p, state] = merge_on_cpu(x, 2, rule, fixed_max);
    print("  {:<13} {:>4.0f} {:>9}   ", name, state.m, text("%.3g", state.l));
    for (const float weight : p) print(" {:>7}", text("%.4f", weight));
    print(" {:>8}\n", text("%.4f", p.sum()));
  }
  print("\n");
}

inline void narrate_listings() {
  std::vector<wrong::Block> blocks{{0, 1, {1}}, {0, 1, {3}}};
  const double first = wrong::stale_merge(blocks)[0], later = wrong::unguarded_merge(blocks)[0];
  const std::vector<wrong::Block> empty_first{{-kInf<double>, 0, {0}}, {0, 1, {3}}};
  print(
      "Two more ways to go wrong:\n"
      "  o is the first part's own array: parts (0, 1, 1), (0, 1, 3) give {}, and merged "
      "rightly\n  after that {}, for the first part has changed.\n"
      "  An empty first part (-inf, 0, 0) without a guard: {}. Here it is skipped.\n\n",
      text("%g", first), text("%g", later), text("%g", wrong::unguarded_merge(empty_first)[0]));
}

inline Parts<float> random_parts(Index T, Index d) {
  return {random_matrix<float>(T, 1, 0, 0, 5.0),
          random_matrix<float>(T, 1, 0, 1).array().abs() + 1, random_matrix<float>(T, d, 0, 2)};
}

template <class T>
Parts<double> in_float64(const Parts<T>& parts) {
  return {parts.m.template cast<double>(), parts.l.template cast<double>(),
          parts.o.template cast<double>()};
}

// The largest |a - b|; NaN beside NaN is no difference, NaN beside a number is NaN.
template <class A, class B>
double difference(const Vector<A>& a, const Vector<B>& b) {
  double largest = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double x = double{a[i]}, y = double{b[i]};
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!(std::abs(x - y) <= largest)) largest = std::abs(x - y);
    if (std::isnan(largest)) break;
  }
  return largest;
}

inline void compare_devices() {
  const Parts<float> parts = random_parts(37, 64);
  const Vector<double> right = merge_on_cpu(in_float64(parts), MergeRule::correct).values;
  print(
      "37 random parts of 64 channels. Largest difference from the correct rule in float64:\n\n"
      "                         ");
  for (const NamedRule& rule : kRules) print("{:>15}", rule.name);
  const auto report = [&](const std::string& name, const auto& merge) {
    print("\n  {:<23}", name);
    for (const auto& [rule_name, rule, fixed_max] : kRules) {
      const double error = difference(merge(rule, fixed_max).values, right);
      print("{:>15}", text("%.1e", error));
      if (rule == MergeRule::correct && !(error <= 1e-5)) {
        throw cli::CheckFailed(name + " differs from float64");
      }
    }
  };
  report("CPU", [&](MergeRule rule, double max) { return merge_on_cpu(parts, rule, max); });
  if (!device_available()) {
    print("\n  CUDA kernel            not run: this build wants a GPU, and there is none\n");
    return;
  }
  report("CUDA kernel (" + std::string(device_kind()) + ")",
         [&](MergeRule rule, double max) { return merge_on_device(parts, rule, max); });
  print("\n");
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_two_parts();
  show_table();
  narrate_scores();
  narrate_listings();
  compare_devices();
}

}  // namespace flash_steps

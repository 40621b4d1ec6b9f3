// Chapter 11: parts of a softmax merged by four rules, on the CPU and on the device, against
// the same sums in float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"
#include "chapters/11_wrong_vs_correct_merge/wrong_versions.hpp"
#include "common/device/eigen.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

constexpr float kInfinity = kInf<float>, kNan = std::numeric_limits<float>::quiet_NaN();
constexpr MergeRule kCorrect = MergeRule::correct, kStale = MergeRule::stale_max,
                    kNoRescale = MergeRule::no_rescale, kFixed = MergeRule::fixed_max;
constexpr MergeRule kAllRules[] = {kCorrect, kStale, kNoRescale, kFixed};

// What is tested: one of the twins.
struct Twin {
  std::function<Merged<float>(const Parts<float>&, MergeRule, double)> parts;
  std::function<Merged<float>(const Vector<float>&, Index, MergeRule, double)> scores;
};

// Outputs start as NaN, and inputs must come back unchanged.
template <class T>
Merged<T> parts_on_cpu(const Parts<T>& parts, MergeRule rule = kCorrect, double fixed = 0) {
  Merged<T> merged{Vector<T>::Constant(parts.o.cols(), T(NAN)), {}};
  const auto call = [&] {
    merged.state = merge_parts_cpu<T>(parts.m, parts.l, parts.o, merged.values, rule, fixed);
  };
  check_unchanged(call, parts.m, parts.l, parts.o);
  return merged;
}

Merged<float> parts_on_device(const Parts<float>& parts, MergeRule rule = kCorrect,
                              double fixed = 0) {
  const auto m = to_device(parts.m), l = to_device(parts.l);
  const auto o = to_device(parts.o);
  DeviceArray<float> O(parts.o.cols()), state(2);  // new arrays are NaN
  merge_parts_cuda(m, l, o, O, state, rule, fixed);
  check_holds(m, parts.m, l, parts.l, o, parts.o);
  const Vector<float> ml = to_host(state);
  return {to_host(O), {ml[0], ml[1]}};
}

template <class T>
Merged<T> scores_on_cpu(const Vector<T>& x, Index Bc, MergeRule rule = kCorrect,
                        double fixed = 0) {
  Merged<T> merged{Vector<T>::Constant(x.size(), T(NAN)), {}};
  check_unchanged(
      [&] { merged.state = merge_scores_cpu<T>(x, merged.values, Bc, rule, fixed); }, x);
  return merged;
}

Merged<float> scores_on_device(const Vector<float>& x, Index Bc, MergeRule rule = kCorrect,
                               double fixed = 0) {
  const auto device_x = to_device(x);
  DeviceArray<float> p(x.size()), state(2);
  merge_scores_cuda(device_x, p, state, Bc, rule, fixed);
  check_holds(device_x, x);
  const Vector<float> ml = to_host(state);
  return {to_host(p), {ml[0], ml[1]}};
}

const Twin cpu{parts_on_cpu<float>, scores_on_cpu<float>},
    device{parts_on_device, scores_on_device};

// ---- the same sums in float64, each as a formula rather than a walk

// What the terms of part t are relative to in the end.
std::vector<double> references(const Vector<double>& m, const Vector<double>& l, MergeRule rule,
                               double fixed) {
  std::vector<double> relative_to(static_cast<std::size_t>(m.size()), fixed);
  double first = NAN, largest = -INFINITY;
  for (Index t = 0; t < m.size(); ++t) {
    if (l[t] == 0) continue;
    if (std::isnan(first)) first = m[t];
    largest = std::max(largest, m[t]);
    if (rule == kStale) relative_to[static_cast<std::size_t>(t)] = first;
    if (rule == kNoRescale) relative_to[static_cast<std::size_t>(t)] = largest;
  }
  if (rule == kCorrect) std::fill(relative_to.begin(), relative_to.end(), largest);
  return relative_to;
}

struct Exact {
  Vector<double> O;
  double m = -INFINITY, l = 0;
};

template <class T>
Exact exact(const Parts<T>& parts, MergeRule rule = kCorrect, double fixed = 0) {
  const Vector<double> m = parts.m.template cast<double>(), l = parts.l.template cast<double>();
  const auto relative_to = references(m, l, rule, fixed);
  Exact result{Vector<double>::Zero(parts.o.cols())};
  for (Index t = 0; t < m.size(); ++t) {
    if (l[t] == 0) continue;
    result.m = relative_to[static_cast<std::size_t>(t)];
    const double weight = std::exp(m[t] - result.m);
    result.l += weight * l[t];
    result.O += weight * parts.o.row(t).transpose().template cast<double>();
  }
  if (result.m != -INFINITY) result.O /= result.l;
  return result;
}

// Budgets: float32 exponents are off by up to 6e-8 of the larger of m and fixed, and exp makes
// that a relative error of l, whose size depends on the rule.
void check_merged(const Merged<float>& merged, const Exact& expected) {
  check_close(merged.values, expected.O, kFloat32);
  CHECK(merged.state.m == static_cast<float>(expected.m));
  CHECK(matches(merged.state.l, expected.l, 2e-5 * expected.l));
}

// ---- data

Parts<float> parts_of(const std::vector<float>& m, const std::vector<float>& l,
                      const std::vector<float>& o) {  // d = 1
  return {vector(m), vector(l), Floats(vector(o))};
}
// Two parts with the values 1 and 2.
Parts<float> two_parts(float first, float second) {
  return parts_of({first, second}, {1, 1}, {1, 2});
}

// Finished results with their LSE, as another kernel returns them (d = 1).
Parts<float> finished(const std::vector<float>& O, const std::vector<float>& LSE) {
  Parts<float> parts = parts_of(LSE, LSE, O);
  for (float& l : parts.l) l = l_of_finished(l);
  return parts;
}

// m from -3 to 3 or so times `spread`, l from 1 on, every third part empty if wanted.
Parts<float> random_parts(Index T, Index d, std::uint64_t seed, double spread = 1.0,
                          bool some_empty = false) {
  Parts<float> parts{random_matrix<float>(T, 1, seed, 0, spread),
                     random_matrix<float>(T, 1, seed, 1).array().abs() + 1.0f,
                     random_matrix<float>(T, d, seed, 2)};
  for (Index t = 0; some_empty && t < T; t += 3) parts.l[t] = 0;
  return parts;
}

Vector<float> random_scores(Index N, std::uint64_t seed, double deviation = 1.0) {
  return random_matrix<float>(N, 1, seed, 0, deviation);
}

bool same(const Merged<float>& a, const Merged<float>& b) {
  return same_bits(a.values, b.values) &&
         same_bits(vector({a.state.m, a.state.l}), vector({b.state.m, b.state.l}));
}

bool all_nan(const Merged<float>& merged) {
  return merged.values.array().isNaN().all() && std::isnan(merged.state.l) &&
         std::isnan(lse(merged.state));
}

void check_one(const Merged<float>& merged, double O, double LSE) {
  REQUIRE(merged.values.size() == 1);
  CHECK(matches(merged.values[0], O, 1e-6 + 1e-5 * std::abs(O), true));
  CHECK(matches(lse(merged.state), LSE, 1e-6 + 2e-7 * std::abs(LSE), true));
}

// ---- bodies that run on both devices: the errata

// E19: the stale maximum is exact until exp overflows; without a rescale the result is wrong
// and looks like any other. E46: so is a fixed maximum exact, in range.
void errata(const Twin& twin) {
  const auto o = [&](float gap, MergeRule rule, double fixed = 0) {
    return double{twin.parts(two_parts(10, 10 + gap), rule, fixed).values[0]};
  };
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-6); };
  CHECK(o(10, kCorrect) == near(1.9999546));
  CHECK(o(10, kStale) == near(1.9999546));
  CHECK(o(10, kNoRescale) == 1.5);
  CHECK(o(10, kFixed, 30) == near(1.9999546));
  CHECK(std::isnan(o(10, kFixed, 130)));
  // LSE, too: exact, exact, and off by ln 2
  const auto log_sum = [&](MergeRule rule, double fixed = 0) {
    return double{lse(twin.parts(two_parts(10, 20), rule, fixed).state)};
  };
  const double LSE = 20 + std::log1p(std::exp(-10.0));
  CHECK(log_sum(kCorrect) == near(LSE));
  CHECK(log_sum(kStale) == near(LSE));
  CHECK(log_sum(kFixed, 30) == near(LSE));
  CHECK(log_sum(kNoRescale) == near(20 + std::log(2.0)));
  CHECK(log_sum(kFixed, 130) == -INFINITY);  // as if there had been no key

  CHECK(o(88, kStale) == 2);  // float32's exp reaches infinity at 88.7
  CHECK(std::isnan(o(89, kStale)));
  for (const float gap : {1.0f, 10.0f, 50.0f, 88.0f, 89.0f, 200.0f, 700.0f}) {
    CAPTURE(gap);
    CHECK(o(gap, kCorrect) == near(2 - 1 / (1 + std::exp(double{gap}))));
    CHECK(o(gap, kNoRescale) == 1.5);
    CHECK(o(-gap, kCorrect) == near(2 - 1 / (1 + std::exp(-double{gap}))));
    // when the larger maximum comes first, nothing has to be rescaled
    CHECK(o(-gap, kStale) == near(2 - 1 / (1 + std::exp(-double{gap}))));
    CHECK(o(-gap, kNoRescale) == near(2 - 1 / (1 + std::exp(-double{gap}))));
  }
  // a fixed maximum has room of 88 below the scores, 87 above, then losses up to 104
  CHECK(o(10, kFixed, 20 - 88) == near(1.9999546));
  CHECK(std::isnan(o(10, kFixed, 20 - 89)));
  CHECK(o(1, kFixed, 11 + 80) == near(1.7310586));
  CHECK(std::abs(o(1, kFixed, 11 + 99) - 1.7310586) > 2e-4);  // two digits are left
  CHECK(std::abs(o(1, kFixed, 11 + 99) - 1.7310586) < 3e-2);
  CHECK(std::isnan(o(1, kFixed, 11 + 105)));

  // E6: an empty first part; the rule that is right on paper gives NaN without a guard
  for (const MergeRule rule : kAllRules) {
    check_one(twin.parts(parts_of({-kInfinity, 1}, {0, 1}, {0, 3}), rule, 0), 3, 1);
  }
}

// ---- values

// Each rule against its own formula; but for no_rescale they are the same number in the end.
void every_rule(const Twin& twin) {
  for (const MergeRule rule : kAllRules) {
    for (const Index T : {0, 1, 2, 3, 31, 32, 33, 100}) {
      for (const Index d : {1, 3, 32, 33, 129, 256}) {
        CAPTURE(static_cast<int>(rule));
        CAPTURE(T);
        CAPTURE(d);
        const double fixed = 20.0 * static_cast<double>((T + d) % 3) - 12.5;
        const Parts<float> parts = random_parts(T, d, 1, 4.0, T % 2 == 1);
        const Merged<float> merged = twin.parts(parts, rule, fixed);
        check_merged(merged, exact(parts, rule, fixed));
        CHECK(same(merged, twin.parts(parts, rule, fixed)));
        if (rule == kNoRescale) continue;
        const Exact right = exact(parts);
        check_close(merged.values, right.O, kFloat32);
        CHECK(matches(lse(merged.state), right.m + std::log(right.l), 3e-5));
      }
    }
  }
}

// The correct rule at every magnitude that float32 has.
void magnitudes(const Twin& twin) {
  for (const double spread : {1e-4, 50.0, 1e4, 1e30}) {
    const Parts<float> parts = random_parts(30, 4, 3, spread);
    check_close(twin.parts(parts, kCorrect, 0).values, exact(parts).O, kFloat32);
  }
  check_one(twin.parts(two_parts(-3e38f, 3e38f), kCorrect, 0), 2, double{3e38f});
  check_one(twin.parts(two_parts(3e38f, -3e38f), kCorrect, 0), 1, double{3e38f});
  check_one(twin.parts(two_parts(-3e38f, -3e38f), kCorrect, 0), 1.5, double{-3e38f});
  check_one(twin.parts(two_parts(16777216, 16777216), kCorrect, 0), 1.5, 16777216);
}

// ---- empty parts, and NaN

// Parts with l = 0 change not a bit, wherever they stand and whatever m and o hold.
void empty_parts(const Twin& twin) {
  const Parts<float> parts = random_parts(4, 3, 5, 3.0);
  for (const MergeRule rule : kAllRules) {
    CAPTURE(static_cast<int>(rule));
    const Merged<float> plain = twin.parts(parts, rule, 1.5);
    for (const float filler : {0.0f, 1e6f, kNan, kInfinity, -kInfinity}) {
      for (const float m : {-kInfinity, kInfinity, 1e30f, kNan, 0.0f}) {
        for (int where = 0; where < 5; ++where) {
          CAPTURE(filler);
          CAPTURE(m);
          CAPTURE(where);
          Parts<float> more{Vector<float>::Constant(6, m), Vector<float>::Zero(6),
                            Floats::Constant(6, 3, filler)};
          for (Index t = 0; t < 4; ++t) {  // two empty parts side by side before part `where`
            const Index to = t + (t >= where ? 2 : 0);
            more.m[to] = parts.m[t];
            more.l[to] = parts.l[t];
            more.o.row(to) = parts.o.row(t);
          }
          CHECK(same(twin.parts(more, rule, 1.5), plain));
        }
      }
    }
    for (const Index T : {0, 1, 3}) {  // nothing but empty parts
      const Parts<float> empty{Vector<float>::Constant(T, kNan), Vector<float>::Zero(T),
                               Floats::Constant(T, 2, kNan)};
      const Merged<float> merged = twin.parts(empty, rule, 7);
      CHECK(same(merged, {Vector<float>::Zero(2), {}}));
      CHECK(lse(merged.state) == -kInfinity);
    }
  }
}

// NaN in m or l is everywhere in the result, NaN in a channel of o is in that channel. A part
// whose maximum dropped the NaN, m = -inf and l = NaN, is not empty.
void nan_propagates(const Twin& twin) {
  for (const MergeRule rule : kAllRules) {
    for (Index t = 0; t < 3; ++t) {
      CAPTURE(static_cast<int>(rule));
      CAPTURE(t);
      const Parts<float> parts = random_parts(3, 4, 6);
      Parts<float> bad = parts;
      bad.m[t] = kNan;
      CHECK(all_nan(twin.parts(bad, rule, 1)));
      bad.l[t] = kNan;
      CHECK(all_nan(twin.parts(bad, rule, 1)));
      bad.m[t] = -kInfinity;  // what a maximum over nothing but NaN may be
      CHECK(all_nan(twin.parts(bad, rule, 1)));
      bad.m[t] = kInfinity;  // a score that overflowed: exp(inf - inf)
      CHECK(all_nan(twin.parts(bad, rule, 1)));

      bad = parts;
      bad.o(t, 2) = kNan;
      const Merged<float> merged = twin.parts(bad, rule, 1), clean = twin.parts(parts, rule, 1);
      for (Index c = 0; c < 4; ++c) CHECK(std::isnan(merged.values[c]) == (c == 2));
      CHECK(merged.values[3] == clean.values[3]);
      CHECK(lse(merged.state) == lse(clean.state));
    }
  }
  // the weight of a part may be 0 beside a larger one, its NaN is not
  Parts<float> far = two_parts(0, 500);
  far.o(0, 0) = kNan;
  CHECK(std::isnan(twin.parts(far, kCorrect, 0).values[0]));
  // alone, too
  check_one(twin.parts(parts_of({-kInfinity}, {kNan}, {kNan}), kCorrect, 0), NAN, NAN);
}

// ---- properties

// The order and the grouping change the correct result by rounding only.
void any_order(const Twin& twin) {
  const Parts<float> parts = random_parts(6, 5, 8, 6.0, true);
  const Exact expected = exact(parts);
  std::vector<Index> order{0, 1, 2, 3, 4, 5};
  do {
    const Parts<float> reordered{parts.m(order), parts.l(order), parts.o(order, Eigen::all)};
    check_merged(twin.parts(reordered, kCorrect, 0), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

// a + (b + c) = (a + b) + c, where a sum goes on as a finished result with its LSE.
void any_grouping(const Twin& twin) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const Parts<float> parts = random_parts(6, 3, seed, 5.0, seed % 2 == 1);
    const auto merged_group = [&](Index first, Index count) {
      return twin.parts({parts.m.segment(first, count), parts.l.segment(first, count),
                         parts.o.middleRows(first, count)},
                        kCorrect, 0);
    };
    for (Index cut = 0; cut <= 6; ++cut) {  // one group may be empty
      const Merged<float> left = merged_group(0, cut), right = merged_group(cut, 6 - cut);
      Parts<float> groups{Vector<float>(2), Vector<float>(2), Floats(2, 3)};
      groups.m << lse(left.state), lse(right.state);
      for (Index g = 0; g < 2; ++g) groups.l[g] = l_of_finished(groups.m[g]);
      groups.o << left.values.transpose(), right.values.transpose();
      const Merged<float> merged = twin.parts(groups, kCorrect, 0);
      const Exact expected = exact(parts);
      check_close(merged.values, expected.O, kFloat32);
      CHECK(matches(lse(merged.state), expected.m + std::log(expected.l), 1e-5));
    }
  }
}

void properties(const Twin& twin) {
  // equal values come back: from every rule in its range, the wrong one included, whose result
  // is a weighted average all the same. A test with constant V cannot find it
  Parts<float> parts = random_parts(9, 4, 9, 4.0);
  parts.m[0] = parts.m.minCoeff() - 1;  // or the first part might need no rescaling
  parts.o = parts.l * Eigen::RowVector4f(1, -2, 0.25f, 30);
  for (const MergeRule rule : kAllRules) {
    check_close(twin.parts(parts, rule, 3).values, Eigen::Vector4d(1, -2, 0.25, 30), kFloat32);
  }
  CHECK(std::abs(twin.parts(parts, kNoRescale, 0).state.l - exact(parts).l) > 0.1);

  // a number added to all scores moves LSE and nothing else; with whole numbers to the bit
  parts = random_parts(8, 3, 10, 8.0);
  parts.m = parts.m.array().round();
  for (const MergeRule rule : kAllRules) {
    const Merged<float> plain = twin.parts(parts, rule, 2);
    for (const float shift : {-4096.0f, -100.0f, 7.0f, 100.0f, 4096.0f}) {
      CAPTURE(shift);
      Parts<float> moved = parts;
      moved.m.array() += shift;
      const Merged<float> merged = twin.parts(moved, rule, 2 + double{shift});
      CHECK(same(merged, {plain.values, {plain.state.m + shift, plain.state.l}}));
    }
  }

  // where maxima rise the old sums have to be rescaled; where they only fall nothing has to be
  parts = random_parts(20, 2, 11, 10.0);
  std::sort(parts.m.begin(), parts.m.end());
  check_merged(twin.parts(parts, kCorrect, 0), exact(parts));
  CHECK(std::abs(twin.parts(parts, kNoRescale, 0).state.l - exact(parts).l) > 1);
  std::reverse(parts.m.begin(), parts.m.end());
  for (const MergeRule rule : {kCorrect, kStale, kNoRescale}) {
    check_merged(twin.parts(parts, rule, 0), exact(parts));
  }
}

// ---- from scores

// The parts that blocks of scores are, in float64, without values.
Parts<double> parts_of_scores(const Vector<float>& x, Index Bc) {
  const Index N = x.size(), T = Bc >= N ? (N > 0) : (N + Bc - 1) / Bc;
  Parts<double> parts{Vector<double>::Constant(T, -INFINITY), Vector<double>::Zero(T),
                      Matrix<double>::Zero(T, 1)};
  for (Index t = 0; t < T; ++t) {
    const Index start = t * Bc, count = std::min(Bc, N - start);
    const auto block = x.segment(start, count).cast<double>();
    parts.m[t] = block.maxCoeff();
    for (const double score : block) {
      if (score != -INFINITY) parts.l[t] += std::exp(score - parts.m[t]);
    }
  }
  return parts;
}

void check_scores(const Twin& twin, const Vector<float>& x, Index Bc, MergeRule rule,
                  double fixed) {
  const Merged<float> merged = twin.scores(x, Bc, rule, fixed);
  const Exact expected = exact(parts_of_scores(x, Bc), rule, fixed);
  const bool nothing = expected.m == -INFINITY;
  Vector<double> p = Vector<double>::Zero(x.size());
  for (Index i = 0; i < x.size() && !nothing; ++i) {
    p[i] = std::exp(double{x[i]} - expected.m) / expected.l;
  }
  check_close(merged.values, p, kFloat32);
  CHECK(merged.state.m == static_cast<float>(expected.m));
  CHECK(matches(merged.state.l, expected.l, 2e-5 * expected.l));
}

void blocks_of_any_size(const Twin& twin) {
  for (const Index N : {0, 1, 2, 7, 8, 9, 17, 33, 150, 1025}) {
    for (const Index Bc :
         {Index{1}, Index{2}, Index{8}, Index{33}, Index{64}, Index{1024}, Index{INT64_MAX}}) {
      if (N > 200 && Bc < 64) continue;
      for (const MergeRule rule : kAllRules) {
        CAPTURE(N);
        CAPTURE(Bc);
        CAPTURE(static_cast<int>(rule));
        check_scores(twin, random_scores(N, 13, 3.0), Bc, rule, 4);
      }
    }
  }
}

// The correct rule is softmax for every Bc; the others say where they are not.
void rules_on_scores(const Twin& twin) {
  const Vector<float> x = vector({1, 3, 2, 4});
  const auto p = [&](MergeRule rule, double fixed = 0) {
    const Merged<float> merged = twin.scores(x, 2, rule, fixed);
    return merged.values;
  };
  const Eigen::Vector4d right(0.0320586, 0.2368828, 0.0871443, 0.6439143);
  check_close(p(kCorrect), right, {1e-6, 0});
  check_close(p(kStale), right, {1e-6, 0});
  check_close(p(kFixed, 30), right, {1e-6, 0});
  check_close(p(kNoRescale), Eigen::Vector4d(0.0219262, 0.1620137, 0.0596014, 0.4403987),
              {1e-6, 0});
  CHECK(p(kNoRescale).sum() == doctest::Approx(0.68394));  // no distribution any more
  CHECK(p(kFixed, 130).array().isNaN().all());             // 0/0
  // overflow: the first block's maximum is left behind by 89
  const Merged<float> far = twin.scores(vector({0, -1, 89, 3}), 2, kStale, 0);
  CHECK(far.state.l == kInfinity);
  CHECK(std::isnan(far.values[2]));
}

void special_scores(const Twin& twin) {
  for (const MergeRule rule : kAllRules) {
    for (const Index Bc : {1, 2, 3, 100}) {
      CAPTURE(static_cast<int>(rule));
      CAPTURE(Bc);
      // hidden before, between, behind, and nothing else
      for (const Vector<float>& x :
           {vector({-kInfinity, -kInfinity, -kInfinity, 1, 2}),
            vector({1, 2, -kInfinity, -kInfinity, -kInfinity}),
            vector({1, -kInfinity, -kInfinity, -kInfinity, -kInfinity, 2}),
            vector({-kInfinity, -kInfinity, -kInfinity, -kInfinity})}) {
        check_scores(twin, x, Bc, rule, 0);
      }
      for (const float special : {kNan, kInfinity}) {
        for (Index place = 0; place < 5; ++place) {
          Vector<float> x = vector({-kInfinity, 2, -1, -kInfinity, 3});
          x[place] = special;
          CHECK(all_nan(twin.scores(x, Bc, rule, 0)));
        }
      }
    }
  }
}

// ---- real data, and reports about other kernels

// PyTorch's attention, from parts: each query's keys are cut at some places, each piece is
// attention over its own keys, and the merged pieces must be PyTorch's O and LSE.
void goldens_agree(const Twin& twin) {
  for (const std::string set : {"forward", "real"}) {
    int heads = 0;
    for (const Golden& g : goldens(set)) {
      if (set == "real" && ++heads % 6 != 1) continue;  // a launch a query: some are enough
      CAPTURE(g.name);
      const Index Nk = g.K.rows(), d = g.Q.cols(), cut = Nk / 3, last = Nk - Nk / 5;
      const auto piece = [&](Index start, Index count) {
        return reference(g.Q, g.K.middleRows(start, count), g.V.middleRows(start, count),
                         {.scale = g.scale});
      };
      const ReferenceResult pieces[] = {piece(0, cut), piece(cut, 0), piece(cut, last - cut),
                                        piece(last, Nk - last)};
      Floats O(g.Q.rows(), d);
      Vector<float> LSE(g.Q.rows());
      for (Index i = 0; i < g.Q.rows(); ++i) {
        Parts<float> parts{Vector<float>(4), Vector<float>(4), Floats(4, d)};
        for (Index t = 0; t < 4; ++t) {
          const ReferenceResult& r = pieces[t];
          parts.m[t] = static_cast<float>(i % 2 ? r.m[i] : r.LSE[i]);  // both forms of a part
          parts.l[t] = i % 2 ? static_cast<float>(r.l[i]) : l_of_finished(parts.m[t]);
          parts.o.row(t) = (r.O.row(i) * (i % 2 ? r.l[i] : 1.0)).cast<float>();
        }
        const Merged<float> merged = twin.parts(parts, kCorrect, 0);
        O.row(i) = merged.values.transpose();
        LSE[i] = lse(merged.state);
      }
      check_close(LSE, g.LSE, kFloat32);
      // m as a float32 is off by 6e-8 of its size, and so are the weights
      const double largest = g.LSE.cwiseAbs().maxCoeff();
      check_close(O, g.O, {kFloat32.absolute, kFloat32.relative + 1.2e-7 * largest});
    }
  }
}

void reported_empty_parts(const Twin& twin) {
  const auto merge = [&](const Parts<float>& parts) { return twin.parts(parts, kCorrect, 0); };
  // K03 flash-attention 978, flashinfer 4484: an empty set has LSE = -inf, not +inf, and is
  // neutral to the bit
  check_one(merge(finished({0, 3}, {-kInfinity, 0.5})), 3, 0.5);
  for (const float filler : {0.0f, kNan}) {
    const Merged<float> after = merge(finished({3.3f, filler}, {0.7f, -kInfinity})),
                        before = merge(finished({filler, 3.3f}, {-kInfinity, 0.7f}));
    CHECK(after.values[0] == 3.3f);
    CHECK(lse(after.state) == 0.7f);
    CHECK(same(after, before));
    check_one(merge(finished({filler, filler}, {-kInfinity, -kInfinity})), 0, -INFINITY);
  }
  // K01 pytorch 127055, llama.cpp 6438: the first tiles are hidden altogether
  check_one(merge(parts_of({-kInfinity, 0}, {0, 2}, {0, 7})), 3.5, std::log(2.0));
  check_one(merge(parts_of({-kInfinity, 0}, {0, 1}, {9, 4})), 4, 0);
  // K12 vllm 47188: five keys of equal score in more splits than there are keys for
  for (const Index splits : {4, 6, 8}) {
    for (const float filler : {kNan, 1e6f}) {
      Parts<float> parts{Vector<float>::Constant(splits, filler == 1e6f ? 50.0f : filler),
                         Vector<float>::Zero(splits), Floats::Constant(splits, 1, filler)};
      const Index size = (5 + splits - 1) / splits;
      for (Index j = 0; j < 5; ++j) {
        const Index t = j / size;
        if (j % size == 0) parts.m[t] = parts.o(t, 0) = 0;
        parts.l[t] += 1;
        parts.o(t, 0) += static_cast<float>(j + 1);
      }
      check_one(merge(parts), 3, std::log(5.0));
    }
  }
  // K13 lattice 789: a row with NaN is not an empty one
  check_one(merge(finished({NAN, 3}, {NAN, 0.5})), NAN, NAN);
  check_one(merge(finished({3, NAN}, {0.5, NAN})), NAN, NAN);
}

void reported_values(const Twin& twin) {
  const auto merge = [&](const Parts<float>& parts) { return twin.parts(parts, kCorrect, 0); };
  const float ln3 = std::log(3.0f);
  // K08 flashinfer 2113: natural logarithms; log_2 in their place is silently wrong
  check_one(merge(finished({0, 1}, {ln3, 0})), 0.25, std::log(4.0));
  check_one(merge(finished({0, 1}, {std::log2(3.0f), 0})), 0.170094, 1.771405);
  // K20 tilelang 1148: the running maximum never falls
  check_one(merge(parts_of({200, 0}, {1, 1}, {1, 2})), 1, 200);
  // K01 flashinfer 4267, flash-attention 2082: all scores far below 0
  check_one(merge(parts_of({-60000, -60001}, {1, 1}, {1, 3})), 1.537883, -59999.6867);
  check_one(merge(parts_of({-200, -200, -200, -200}, {1, 1, 1, 1}, {1, 2, 3, 4})), 2.5,
            -198.613706);
  // K12 llama.cpp 13852, K17 llama.cpp 16744: more parts than channels, than threads of a block
  for (const Index T : {64, 1100}) {
    CAPTURE(T);
    Parts<float> many{Vector<float>::Zero(T), Vector<float>::Ones(T), Floats(T, 8)};
    for (Index t = 0; t < T; ++t) many.o.row(t).setConstant(static_cast<float>(t));
    const Merged<float> merged = merge(many);
    check_close(merged.values, Vector<double>::Constant(8, double(T - 1) / 2), kFloat32);
    CHECK(lse(merged.state) == doctest::Approx(std::log(double(T))).epsilon(1e-6));
  }
  // K20 CUDATutorial 69: m and l after each block
  const Merged<float> first = twin.scores(vector({0, 2}), 2, kCorrect, 0),
                      both = twin.scores(vector({0, 2, 1, 3}), 2, kCorrect, 0);
  CHECK(first.state.m == 2);
  CHECK(matches(first.state.l, 1.135335, 1e-6));
  CHECK(both.state.m == 3);
  CHECK(matches(both.state.l, 1.553002, 1e-6));
  CHECK(matches(lse(both.state), 3.440190, 1e-6));
  // K15 NNlib 506, K17 llama.cpp 16744: 512 scores of -1000; a block of 1100 scores
  const Merged<float> low = twin.scores(Vector<float>::Constant(512, -1000), 100, kCorrect, 0);
  CHECK((low.values.array() == 1.0f / 512).all());
  CHECK(lse(low.state) == doctest::Approx(-993.761675).epsilon(1e-6));
  check_scores(twin, random_scores(2500, 17), 1100, kCorrect, 0);
}

// ---- arguments

void bad_arguments(const Twin& twin) {
  const auto message = [&](Index m, Index l, Index T, Index d, double fixed = 0) {
    return message_of([&] {
      twin.parts({Vector<float>::Ones(m), Vector<float>::Ones(l), Floats::Ones(T, d)}, kFixed,
                 fixed);
    });
  };
  CHECK(message(2, 3, 3, 4) == "m must be [3], found [2]");
  CHECK(message(3, 4, 3, 4) == "l must be [3], found [4]");
  CHECK(message(3, 3, 3, 0) == "the head dimension d must be from 1 to 256, found 0");
  CHECK(message(3, 3, 3, 257) == "the head dimension d must be from 1 to 256, found 257");
  CHECK(message(3, 3, 3, 4, NAN) == "the fixed maximum must be finite in float32, found nan");
  CHECK(message(3, 3, 3, 4, 1e39) ==
        "the fixed maximum must be finite in float32, found 1e+39");
  CHECK(message(3, 3, 3, 4, -3e38) == "accepted");
  CHECK(message(0, 0, 0, 256) == "accepted");
  const auto of_scores = [&](Index Bc, double fixed) {
    return message_of([&] { twin.scores(vector({1, 2}), Bc, kFixed, fixed); });
  };
  CHECK(of_scores(0, 0) == "Bc must be at least 1, found 0");
  CHECK(of_scores(1, -INFINITY) == "the fixed maximum must be finite in float32, found -inf");
}

}  // namespace

// ---- the cases: each body once on the CPU and once on the device

TEST_CASE("cpu: errata E6 E19 E46 where each rule breaks") { errata(cpu); }
TEST_CASE("device: errata E6 E19 E46 where each rule breaks") {
  if (have_device()) errata(device);
}

TEST_CASE("cpu: every rule gives what its formula says") { every_rule(cpu); }
TEST_CASE("device: every rule gives what its formula says") {
  if (have_device()) every_rule(device);
}

TEST_CASE("cpu: the correct rule at every magnitude") { magnitudes(cpu); }
TEST_CASE("device: the correct rule at every magnitude") {
  if (have_device()) magnitudes(device);
}

TEST_CASE("cpu: empty parts change nothing and merge to nothing K03 K12") { empty_parts(cpu); }
TEST_CASE("device: empty parts change nothing and merge to nothing K03 K12") {
  if (have_device()) empty_parts(device);
}

TEST_CASE("cpu: NaN is not empty and propagates K13") { nan_propagates(cpu); }
TEST_CASE("device: NaN is not empty and propagates K13") {
  if (have_device()) nan_propagates(device);
}

TEST_CASE("cpu: order and grouping of parts do not matter") {
  any_order(cpu);
  any_grouping(cpu);
}
TEST_CASE("device: order and grouping of parts do not matter") {
  if (!have_device()) return;
  any_order(device);
  any_grouping(device);
}

TEST_CASE("cpu: shifts and constant values and falling maxima") { properties(cpu); }
TEST_CASE("device: shifts and constant values and falling maxima") {
  if (have_device()) properties(device);
}

TEST_CASE("cpu: rules on scores in blocks of any size") {
  blocks_of_any_size(cpu);
  rules_on_scores(cpu);
  special_scores(cpu);
}
TEST_CASE("device: rules on scores in blocks of any size") {
  if (!have_device()) return;
  blocks_of_any_size(device);
  rules_on_scores(device);
  special_scores(device);
}

TEST_CASE("cpu: PyTorch's results are met from parts") { goldens_agree(cpu); }
TEST_CASE("device: PyTorch's results are met from parts") {
  if (have_device()) goldens_agree(device);
}

TEST_CASE("cpu: reported cases K01 K03 K08 K12 K13 K15 K17 K20") {
  reported_empty_parts(cpu);
  reported_values(cpu);
}
TEST_CASE("device: reported cases K01 K03 K08 K12 K13 K15 K17 K20") {
  if (!have_device()) return;
  reported_empty_parts(device);
  reported_values(device);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(device);
}

// ---- the CPU's own

TEST_CASE("cpu: errata E47 the first part's own array is overwritten") {
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-12); };
  std::vector<wrong::Block> blocks{{0, 1, {1}}, {0, 1, {3}}};
  CHECK(wrong::stale_merge(blocks)[0] == near(2));        // right
  CHECK(wrong::unguarded_merge(blocks)[0] == near(3.5));  // but blocks[0].o is 4 by now
  CHECK(blocks[0].o[0] == 4);
  CHECK(blocks[0].l == 1);  // a number is copied, an array is not
  const Parts<float> parts = parts_of({0, 0}, {1, 1}, {1, 3});
  for (int again = 0; again < 2; ++again)
    check_one(parts_on_cpu(parts, kStale), 2, std::log(2));
  // E19 and E6 as the listings have them
  std::vector<wrong::Block> apart{{10, 1, {1}}, {20, 1, {2}}},
      empty_first{{-INFINITY, 0, {0}}, {1, 1, {3}}};
  CHECK(wrong::unguarded_merge(apart)[0] == near(1.99995460213));
  CHECK(wrong::stale_merge(apart)[0] == near(1.99995460213));
  CHECK(std::isnan(wrong::unguarded_merge(empty_first)[0]));
}

TEST_CASE("cpu: float64 has the same limits further out") {
  const auto o = [](double gap, MergeRule rule, double fixed = 0) {
    return parts_on_cpu<double>({Eigen::Vector2d(10, 10 + gap), Eigen::Vector2d(1, 1),
                                 Matrix<double>(Eigen::Vector2d(1, 2))},
                                rule, fixed)
        .values[0];
  };
  for (const double gap : {1.0, 10.0, 50.0, 88.0, 89.0, 200.0, 700.0, 709.0}) {
    CAPTURE(gap);
    const double right = 2 - 1 / (1 + std::exp(gap));
    CHECK(o(gap, kCorrect) == doctest::Approx(right).epsilon(1e-14));
    CHECK(o(gap, kStale) == doctest::Approx(right).epsilon(1e-14));
    CHECK(o(gap, kFixed, 130) == doctest::Approx(right).epsilon(1e-14));
    CHECK(o(gap, kNoRescale) == 1.5);
  }
  CHECK(std::isnan(o(710, kStale)));
  CHECK(o(710, kCorrect) == 2);
  CHECK(std::isnan(o(10, kFixed, 800)));
  const Parts<float> p = random_parts(50, 7, 15, 30.0, true);
  const Parts<double> parts{p.m.cast<double>(), p.l.cast<double>(), p.o.cast<double>()};
  check_close(parts_on_cpu(parts).values, exact(parts).O, kFloat64);
}

// On whole parts, with sums that are parts again.
TEST_CASE("cpu: merge_part is associative and commutative to rounding") {
  const Parts<float> parts = random_parts(3, 6, 16, 5.0);
  const auto part = [&](Index t) {
    Part<float> p(6);
    p.m = parts.m[t], p.l = parts.l[t], p.o = parts.o.row(t).transpose();
    return p;
  };
  const auto merged = [](Part<float> a, const Part<float>& b) {
    merge_part<float>(a, b.m, b.l, b.o);
    return a;
  };
  const auto close = [](const Part<float>& a, const Part<float>& b) {
    CHECK(a.m == b.m);
    CHECK(matches(a.l, b.l, 1e-6 * b.l));
    check_close(a.o, b.o, kFloat32);
  };
  const Part<float> a = part(0), b = part(1), c = part(2), none(6);
  close(merged(a, b), merged(b, a));
  close(merged(merged(a, b), c), merged(a, merged(b, c)));
  CHECK(same_bits(merged(none, a).o, a.o));
  CHECK(same_bits(merged(a, none).o, a.o));
  CHECK(merged(none, none).l == 0);
}

TEST_CASE("cpu: softmax by blocks may overwrite its scores and is chapter 01's") {
  Vector<float> x = random_scores(200, 18), p(200);
  online_softmax_cpu<float>(x, p);
  merge_scores_cpu<float>(x, x, 30);
  check_close(x, p, {1e-7, 1e-6});
}

TEST_CASE("cpu: an o that is divided by l already needs l = 1") {
  // the halves of scores 1 3 2 4 with values 10 20 30 40
  const std::vector<float> O{18.8080f, 38.8080f}, LSE{3.1269f, 4.1269f};
  check_one(parts_on_cpu(finished(O, LSE)), 33.4292, 4.44016);
  const Parts<float> mixed = parts_of({3, 4}, {1.1353f, 1.1353f}, O);
  CHECK(parts_on_cpu(mixed).values[0] == doctest::Approx(29.4452).epsilon(1e-5));
}

TEST_CASE("cpu: outputs of another size are refused by name") {
  const Parts<float> parts = random_parts(3, 4, 0);
  Vector<float> O(5), p(2);
  CHECK(message_of([&] { merge_parts_cpu<float>(parts.m, parts.l, parts.o, O); }) ==
        "O must be [4], found [5]");
  CHECK(message_of([&] { merge_scores_cpu<float>(parts.m, p, 1); }) ==
        "p must be as long as x, 3, found 2");
}

// ---- the device's own

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Parts<float> parts = random_parts(9, 40, 20, 5.0, true);
  const Vector<float> x = random_scores(300, 20);
  const Merged<float> from_parts = parts_on_device(parts),
                      from_scores = scores_on_device(x, 70);
  in_other_thread_orders([&] {
    CHECK(same(parts_on_device(parts), from_parts));
    CHECK(same(scores_on_device(x, 70), from_scores));
  });
}

TEST_CASE("device: each number is read where it is needed") {
  if (!have_device()) return;
  const std::int64_t T = 7, d = 10, N = 100;
  const Parts<float> parts = random_parts(T, d, 21);
  reset_device_traffic();
  parts_on_device(parts);
  const auto of_parts = device_traffic();
  if (!counted(of_parts)) return;
  CHECK(of_parts->read_bytes == 4 * 3 * T * d);  // every thread reads m and l beside its o
  CHECK(of_parts->written_bytes == 4 * (d + 2));
  reset_device_traffic();
  scores_on_device(random_scores(N, 21), 30);
  CHECK(device_traffic()->read_bytes == 4 * 2 * N);
  CHECK(device_traffic()->written_bytes == 4 * (N + 2));
}

TEST_CASE("device: outputs of another size and blocks too large are refused") {
  if (!have_device()) return;
  const auto m = to_device(vector({1, 2})), l = to_device(vector({1, 1}));
  const DeviceMatrix<float> o = to_device(Floats(Floats::Ones(2, 3)));
  DeviceArray<float> O(3), short_O(2), state(2), long_state(3), p(2), x(131073),
      large_p(131073);
  CHECK(message_of([&] { merge_parts_cuda(m, l, o, short_O, state); }) ==
        "O must be [3], found [2]");
  CHECK(message_of([&] { merge_parts_cuda(m, l, o, O, long_state); }) ==
        "state must be [2], found [3]");
  CHECK(message_of([&] { merge_scores_cuda(m, p, long_state, 1); }) ==
        "state must be [2], found [3]");
  CHECK(message_of([&] { merge_scores_cuda(m, O, state, 1); }) ==
        "p must be as long as x, 2, found 3");
  CHECK(message_of([&] { merge_scores_cuda(p, p, state, 1); }) ==
        "p must not be x: the kernel counts on two arrays");
  CHECK(message_of([&] { merge_scores_cuda(x, large_p, state, 131073); }) ==
        "a block of scores on the device may have 131072, found Bc = 131073");
}

// ---- the executable

namespace {

void program_merges(const std::string& device) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const Parts<float> parts = random_parts(5, 3, 22, 4.0, true);
  const Arguments inputs = put_inputs(
      folder, {{"m", to_npy(parts.m)}, {"l", to_npy(parts.l)}, {"o", to_npy(parts.o)}});
  const std::pair<std::string, MergeRule> rules[] = {{"correct", kCorrect},
                                                     {"stale_max", kStale},
                                                     {"no_rescale", kNoRescale},
                                                     {"fixed_max", kFixed}};
  for (const auto& named : rules) {
    const std::string name = named.first;
    const MergeRule rule = named.second;
    CAPTURE(name);
    const bool fixed = rule == kFixed;
    const ProgramResult r = run_on(
        device, joined(inputs, words("--rule " + name + (fixed ? " --fixed-max 2.5" : ""))),
        out);
    check_prints(
        r, {"\"rule\":\"" + name + "\"", fixed ? "\"fixed_max\":2.5" : "\"fixed_max\":null",
            "\"parts\":5,\"empty_parts\":2,\"d\":3"});
    const Exact expected = exact(parts, rule, 2.5);
    check_close(load_vector<float>(out, "o"), expected.O, kFloat32);
    const Vector<float> LSE = load_vector<float>(out, "lse");
    REQUIRE(LSE.size() == 1);
    CHECK(matches(LSE[0], expected.m + std::log(expected.l), 1e-5));
  }
  // finished results, one of them empty, in float64
  const Eigen::Vector3d lse_in(-INFINITY, 3.1269, 4.1269), o_in(NAN, 18.8080, 38.8080);
  const Arguments finished = put_inputs(
      folder, {{"lse", to_npy(Vector<double>(lse_in))}, {"o", to_npy(Matrix<double>(o_in))}});
  check_prints(run(finished, {"--out", out.string(), "--device", device}),
               "parts = 3 empty_parts = 1 d = 1");
  CHECK(load_vector<double>(out, "o")[0] == doctest::Approx(33.4292).epsilon(1e-5));
  CHECK(load_vector<double>(out, "lse")[0] == doctest::Approx(4.4402).epsilon(1e-5));
}

void program_on_scores(const std::string& device) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const Vector<double> x = random_scores(100, 23, 3.0).cast<double>();
  Vector<double> p(100);
  const double LSE = lse(online_softmax_cpu<double>(x, p));
  const Arguments input = put_inputs(folder, {{"x", to_npy(x)}});
  check_prints(run_on(device, joined(input, {"--bc", "7"}), out),
               {"\"n\":100,\"bc\":7", "\"lse\":" + std::to_string(LSE).substr(0, 5)});
  check_close(load_vector<double>(out, "softmax"), p, device == "cpu" ? kFloat64 : kFloat32);
  check_prints(  // it does what it was asked to
      run(input, words("--rule fixed_max --fixed-max 1e4 --json --device " + device)),
      "\"difference\":\"nan\"");
  check_prints(run(words("--n 50 --bc 8 --rule no_rescale --device " + device)),
               "merge by the rule no_rescale on " + device);
}

}  // namespace

TEST_CASE("cpu: executable demonstration shows where each rule breaks") {
  check_prints(run({}), {"no_rescale      20           2           3   1.500000    20.6931",
                         "89           0.0e+00            nan        5.0e-01",
                         "710           0.0e+00            nan        5.0e-01        0.0e+00",
                         "(0, 1, 3) give 2, and merged rightly\n  after that 3.5"});
}

TEST_CASE("cpu: executable merges parts by every rule") { program_merges("cpu"); }
TEST_CASE("device: executable merges parts by every rule") {
  if (have_device()) program_merges(device_kind());
}

TEST_CASE("cpu: executable takes scores and random input") { program_on_scores("cpu"); }
TEST_CASE("device: executable takes scores and random input") {
  if (have_device()) program_on_scores(device_kind());
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const NpyArray none = to_npy(Vector<float>(0));
  run_on("cpu", put_inputs(folder, {{"m", none}, {"l", none}, {"o", to_npy(Floats(0, 4))}}),
         out);
  check_close(load_vector<float>(out, "o"), Vector<double>::Zero(4), {0, 0});
  CHECK(load_vector<float>(out, "lse")[0] == -kInfinity);
  run_on("cpu", put_inputs(folder, {{"x", none}}), out);
  CHECK(load_vector<float>(out, "softmax").size() == 0);
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const TemporaryFolder folder;
  const auto two = [&](const char* name, float a, float b) {
    return put(folder, name, to_npy(vector({a, b})));
  };
  const std::string m = two("m.npy", 1, 2), l = two("l.npy", 1, 1),
                    o = put(folder, "o.npy", to_npy(Floats(Floats::Ones(2, 3)))),
                    o3 = put(folder, "o3.npy", to_npy(Floats(Floats::Ones(3, 3)))),
                    o64 = put(folder, "o64.npy", to_npy(Matrix<double>(2, 3))),
                    no_channel = put(folder, "no_channel.npy", to_npy(Floats(2, 0)));
  check_refused({"--m", m, "--o", o}, "--l");
  check_refused({"--m", m, "--l", l}, "parts are --o with --m and --l, or --o with --lse");
  check_refused({"--o", o}, "parts are --o with --m and --l, or --o with --lse");
  check_refused({"--m", m, "--l", l, "--lse", m, "--o", o}, "--lse cannot be combined");
  check_refused({"--x", m, "--lse", m, "--o", o}, "cannot be combined");
  check_refused({"--bc", "3", "--lse", m, "--o", o}, "--bc and --o cannot be combined");
  check_refused({"--m", m, "--l", l, "--o", o3}, "o3.npy: dimension 0 (T) is 3");
  check_refused({"--m", m, "--l", l, "--o", o64}, "m.npy is f4");
  check_refused({"--m", m, "--l", l, "--o", no_channel},
                "no_channel.npy: dimension 1 (d) is 0");
  check_refused({"--m", m, "--l", folder.file("missing.npy"), "--o", o}, "missing.npy");
  check_refused({"--m", m, "--l", two("minus.npy", 1, -2), "--o", o},
                "minus.npy: element 1 is -2, but a sum of exponentials is never negative");
  check_refused({"--m", m, "--l", two("infinite.npy", kInfinity, 1), "--o", o},
                "infinite.npy: element 0 is inf, but a sum of exp(s - m) is finite");
  check_refused({"--m", two("inf.npy", -kInfinity, 1), "--l", l, "--o", o},
                "inf.npy: element 0 is -inf, but l is not 0 there");
  check_refused({"--x", o}, "o.npy");
  check_refused({"--rule", "best"}, "--rule");
  check_refused({"--n", "4", "--fixed-max", "3"}, "--fixed-max is for --rule fixed_max");
  check_refused({"--rule", "fixed_max", "--fixed-max", "nan"}, "--fixed-max");
  check_refused({"--rule", "fixed_max", "--fixed-max", "1e39"}, "finite in float32");
  check_refused({"--bc", "0"}, "--bc");
  check_refused({"--device", other_device(), "--n", "4"}, other_device());
}

// Chapter 05: the forward pass that keeps m, l and LSE, on the CPU and on the device, against
// naive attention in float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from. K15
// ik_llama.cpp 1196 and ggml 7805 are about float16 input; here their float32 half is run.
#include <doctest/doctest.h>

#include <functional>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/05_saved_statistics/weight.hpp"
#include "chapters/05_saved_statistics/wrong_versions.hpp"
#include "common/device/eigen.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"
#include "tests/support/results.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

struct Options {
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
};
template <class T>
struct SavedOf {
  Matrix<T> O;
  Vector<T> m, l, LSE;
};
using Saved = SavedOf<float>;
using Forward =
    std::function<Saved(const Floats& Q, const Floats& K, const Floats& V, const Options&)>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMinusInf = -kInf<double>;

// Outputs start as NaN, and inputs must come back unchanged.
Saved on_cpu(const Floats& Q, const Floats& K, const Floats& V, const Options& o) {
  const Vector<float> nan = Vector<float>::Constant(Q.rows(), NAN);
  Saved s{Floats::Constant(Q.rows(), Q.cols(), NAN), nan, nan, nan};
  const auto call = [&] {
    saved_forward_cpu<float>(Q, K, V, s.O, s.m, s.l, s.LSE, o.tile, o.causal, o.scale);
  };
  check_unchanged(call, Q, K, V);
  return s;
}

Saved on_device(const Floats& Q, const Floats& K, const Floats& V, const Options& o) {
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  const Index Nq = Q.rows();
  DeviceMatrix<float> O(Nq, Q.cols());  // new arrays are NaN
  DeviceArray<float> m(Nq), l(Nq), LSE(Nq);
  saved_forward_cuda(device_Q, device_K, device_V, O, m, l, LSE, o.tile, o.causal, o.scale);
  check_holds(device_Q, Q, device_K, K, device_V, V);
  return {to_host(O), to_host(m), to_host(l), to_host(LSE)};
}

ReferenceResult exact(const Floats& Q, const Floats& K, const Floats& V, const Options& o,
                      bool keep_P = false) {
  return reference(Q, K, V, {.scale = o.scale, .causal = o.causal, .keep_P = keep_P});
}

template <class A, class B>
void check_saved(const A& actual, const B& expected, Budget budget = kFloat32) {
  check_outputs(actual, expected, budget);
  check_close(actual.m, expected.m, budget);
  check_close(actual.l, expected.l, budget);
}

// float32 scores and their maximum are off by up to 6e-8 of their size, and exp makes the sum
// of both a relative error of l.
Budget budget_of_l(const Vector<double>& m) {
  double largest = 0;
  for (const double value : m) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return {kFloat32.absolute, kFloat32.relative + 1.2e-7 * largest};
}

// One query of 1 against keys that are their own scores.
Saved forward_scores(const Forward& forward, const std::vector<float>& scores, Index Bc = 2) {
  return forward(column({1}), column(scores),
                 Floats::Zero(static_cast<Index>(scores.size()), 1),
                 {.tile = {1, Bc}, .scale = 1.0});
}

// ---- bodies that run on both devices

void ragged_sizes(const Forward& forward) {
  for (const bool causal : {false, true}) {
    for (const Index d : {1, 20}) {
      CAPTURE(causal);
      CAPTURE(d);
      each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
        const auto [Q, K, V] = random_head(Nq, Nk, d);
        const Options options{.tile = {4, 8}, .causal = causal};
        check_saved(forward(Q, K, V, options), exact(Q, K, V, options));
      });
    }
  }
}

void tile_shapes(const Forward& forward) {
  for (const Size size : {Size{23, 23}, {19, 30}, {30, 19}}) {
    const auto [Q, K, V] = random_head(size.Nq, size.Nk, 6, 1);
    const auto expected = exact(Q, K, V, {.causal = true});
    for (const Tiling tile :
         {Tiling{1, 1}, {2, 3}, {4, 4}, {8, 5}, {5, 8}, {32, 32}, {7, 100}}) {
      CAPTURE(size);
      CAPTURE(tile);
      check_saved(forward(Q, K, V, {.tile = tile, .causal = true}), expected);
    }
  }
}

void scales(const Forward& forward) {
  const auto [Q, K, V] = random_head(21, 21, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 0.01, 3.0}) {
    CAPTURE(scale);
    const Options options{.tile = {4, 8}, .causal = true, .scale = scale};
    check_saved(forward(Q, K, V, options), exact(Q, K, V, options));
  }
  CHECK_THROWS_AS(forward(Q, K, V, {.scale = std::nan("")}), std::invalid_argument);
  CHECK_THROWS_AS(forward(Q, K, V, {.scale = 1e300}), std::invalid_argument);
}

void goldens_agree(const Forward& forward) {
  for (const std::string set : {"forward", "real"}) {
    for (const Golden& g : goldens(set)) {
      for (const bool causal : {false, true}) {
        CAPTURE(g.name);
        CAPTURE(causal);
        const std::string mask = causal ? "_causal" : "";
        const Saved s =
            forward(g.Q, g.K, g.V, {.tile = {16, 32}, .causal = causal, .scale = g.scale});
        check_close(s.O, causal ? g.O_causal : g.O, kFloat32);
        check_close(s.LSE, causal ? g.LSE_causal : g.LSE, kFloat32);
        const auto m = load_vector<double>(g.folder, "m" + mask);
        check_close(s.m, m, kFloat32);
        check_close(s.l, load_vector<double>(g.folder, "l" + mask), budget_of_l(m));
      }
    }
  }
}

// m is one of the scores, its weight is exactly 1, and all others are at most that.
void bounds_of_l(const Forward& forward) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const auto [Q, K, V] = random_head(7, 50, 8, seed, 3.0);
    const Saved s = forward(Q, K, V, {.tile = {4, 16}, .scale = 1.0});
    CHECK((s.l.array() >= 1).all());
    CHECK((s.l.array() <= 50).all());
  }
  // both bounds are met: one key far above the others, and all keys alike
  CHECK(forward_scores(forward, {0, 500, -500}).l[0] == 1);
  CHECK(forward_scores(forward, {-3, -3, -3, -3, -3}).l[0] == 5);
  CHECK(forward_scores(forward, {-3, -3, -3, -3, -3}).m[0] == -3);
}

// A number added to all scores of a row: m and LSE move by it, l and O stay. With whole numbers
// to the bit, but for LSE's rounding.
void shifted_scores(const Forward& forward) {
  const auto at = [&](float shift) {
    return forward_scores(forward, {shift + 1, shift + 3, shift + 2, shift + 4});
  };
  const Saved base = at(0);
  for (const float shift : {-1000.0f, -7.0f, 12.0f, 4096.0f}) {
    CAPTURE(shift);
    const Saved moved = at(shift);
    CHECK(moved.m[0] == base.m[0] + shift);
    CHECK(same_bits(moved.l, base.l));
    CHECK(same_bits(moved.O, base.O));
    CHECK(matches(moved.LSE[0], base.LSE[0] + shift, 1e-6 * std::abs(shift) + 1e-6));
  }
}

// No key, or only keys of score -inf: O = 0, m = -inf, l = 0, LSE = -inf. Never +inf or NaN, or
// a merge would count the row in.
void rows_without_keys(const Forward& forward) {
  const auto check = [&](const Saved& s, const std::vector<double>& O,
                         const std::vector<double>& m, const std::vector<double>& l,
                         const std::vector<double>& LSE) {
    check_saved(s, SavedOf<double>{doubles(O), doubles(m), doubles(l), doubles(LSE)});
  };
  const float inf = kInf<float>;
  check(forward_scores(forward, {}), {0}, {kMinusInf}, {0}, {kMinusInf});
  check(forward_scores(forward, {-inf, -inf, -inf}), {0}, {kMinusInf}, {0}, {kMinusInf});
  check(forward_scores(forward, {-inf, -inf, 5}), {0}, {5}, {1}, {5});
  check(forward_scores(forward, {5, -inf, -inf}), {0}, {5}, {1}, {5});
  // an empty row, then rows that are not, in one tile and in several
  for (const Tiling tile : {Tiling{1, 1}, {2, 2}, {4, 4}, {8, 8}}) {
    const Options causal{.tile = tile, .causal = true, .scale = 1.0};
    // K01 flashinfer 4452
    check(forward(column({1, 1, 1}), column({1}), column({5}), causal), {0, 0, 5},
          {kMinusInf, kMinusInf, 1}, {0, 0, 1}, {kMinusInf, kMinusInf, 1});
    // K02 flash-attention 1778
    check(forward(column({0, 0, 0, 0, 0}), column({1, 1}), column({1, 3}), causal),
          {0, 0, 0, 1, 2}, {kMinusInf, kMinusInf, kMinusInf, 0, 0}, {0, 0, 0, 1, 2},
          {kMinusInf, kMinusInf, kMinusInf, 0, std::log(2.0)});
    // K03 flash-attention 978, xformers 1042
    check(forward(column({1, NAN}), Floats(0, 1), Floats(0, 1), causal), {0, 0},
          {kMinusInf, kMinusInf}, {0, 0}, {kMinusInf, kMinusInf});
  }
  // K03 flash-attention 2515: no query, nothing to do
  const Saved none = forward(Floats(0, 4), Floats::Ones(64, 4), Floats::Ones(64, 4), {});
  CHECK(none.O.rows() == 0);
  CHECK(none.LSE.size() == 0);
}

// K13: NaN reaches l and LSE of the rows that see it, as NaN and not as an infinity; m of such
// a row says nothing.
void nan_and_infinity(const Forward& forward) {
  const Options plain{.tile = {2, 2}, .scale = 1.0},
      causal{.tile = {2, 2}, .causal = true, .scale = 1.0};
  {  // lattice 789: NaN in one query row
    const Saved s = forward(column({1, NAN, 1}), column({1, 1}), column({3, 5}), plain);
    check_close(s.O, doubles({4, kNan, 4}), kFloat32, true);
    check_close(s.l, doubles({2, kNan, 2}), kFloat32, true);
    check_close(s.LSE, doubles({1 + std::log(2.0), kNan, 1 + std::log(2.0)}), kFloat32, true);
  }
  {  // pytorch 101967: NaN at a key that row 0 does not see
    const Saved s = forward(column({1, 1}), column({1, NAN}), column({3, NAN}), causal);
    check_close(s.O, doubles({3, kNan}), kFloat32, true);
    check_close(s.l, doubles({1, kNan}), kFloat32, true);
    check_close(s.LSE, doubles({1, kNan}), kFloat32, true);
    CHECK(s.m[0] == 1);
  }
  for (Index j = 0; j < 5; ++j) {  // in each position of the walk
    CAPTURE(j);
    std::vector<float> scores{5, 4, 3, 2, 1};
    scores[static_cast<std::size_t>(j)] = NAN;
    const Saved bad = forward_scores(forward, scores);
    CHECK(std::isnan(bad.l[0]));
    CHECK(std::isnan(bad.LSE[0]));
    scores.assign(5, 0.0f);  // a score that overflows
    scores[static_cast<std::size_t>(j)] = kInf<float>;
    const Saved overflowed = forward_scores(forward, scores);
    CHECK(std::isnan(overflowed.l[0]));
    CHECK(std::isnan(overflowed.LSE[0]));
    CHECK(std::isnan(overflowed.O(0, 0)));
  }
  {  // NaN beside -inf: the row is not an empty one
    const Saved s = forward_scores(forward, {-kInf<float>, NAN, -kInf<float>});
    CHECK(std::isnan(s.LSE[0]));
    CHECK(std::isnan(s.l[0]));
  }
  {  // NaN in a value: the statistics do not depend on V
    auto [Q, K, V] = random_head(5, 9, 3, 2);
    const Saved clean = forward(Q, K, V, {.tile = {2, 4}});
    V.col(1).setConstant(NAN);
    const Saved s = forward(Q, K, V, {.tile = {2, 4}});
    CHECK(same_bits(s.m, clean.m));
    CHECK(same_bits(s.l, clean.l));
    CHECK(same_bits(s.LSE, clean.LSE));
    CHECK(s.O.col(1).array().isNaN().all());
  }
}

// The LSE of reports about other kernels: natural logarithm, of the scaled visible scores.
void reported_cases(const Forward& forward) {
  const auto check = [&](const char* report, const std::vector<float>& q,
                         const std::vector<float>& k, const std::vector<double>& expected,
                         bool causal = true, double scale = 1) {
    CAPTURE(report);
    for (const Tiling tile : {Tiling{1, 1}, {4, 2}, {2, 3}, {64, 64}}) {
      CAPTURE(tile);
      const Saved s =
          forward(column(q), column(k), Floats::Ones(static_cast<Index>(k.size()), 1),
                  {.tile = tile, .causal = causal, .scale = scale});
      check_close(s.LSE, doubles(expected), {1e-6, 2e-7});
    }
  };
  const auto ln = [](double x) { return std::log(x); };
  const auto zeros = [](std::size_t n) { return std::vector<float>(n, 0.0f); };
  // K08: base 2 would give 1.894636 and 1.584963
  check("K08 pytorch 181645", {1}, {0, 1}, {1.3132617});
  check("K08 flashinfer 2113", {0}, {0, 0, 0}, {ln(3)});
  check("K01 flash-attention 2082", {-200, -200, -200, -200}, {1, 1, 1, 1},
        {-200, -199.306853, -198.901388, -198.613706});
  check("K01 flashinfer 4267", {-1}, {60000, 60001}, {-59999.6867});
  check("K01 lattice 373", {-20000, 0}, {1, 0}, {-20000, ln(2)});
  check("K02 flash-attention 282", zeros(2), zeros(5), {ln(4), ln(5)});
  check("K02 flashinfer 348", zeros(2), zeros(3), {ln(2), ln(3)});
  check("K02 flash-attention 436", zeros(4), zeros(6), {ln(3), ln(4), ln(5), ln(6)});
  check("K04 flashinfer 3716", {0}, {0, 0, 0}, {ln(3)}, false);
  check("K04 flash-attention-minimal 2", {3}, {5}, {15}, false);
  // K15: hidden means -inf after the scale, whatever its sign
  check("K15 flash-attention 1461", {5, 5, 5}, {1, 2, 3}, {0, ln(2), ln(3)}, true, 0);
  check("K15 pytorch 105202", {1, 1}, {1, 2}, {-1, -0.6867383}, true, -1);
  check("K15 pytorch 121558", {133120}, {133120}, {4430233600.0}, true, 0.25);
  check("K15 ggml 7805", {300}, {300, 299}, {351.832363}, true, 1.0 / 256);
  check("K15 NNlib 506", {-1000}, std::vector<float>(512, 1.0f), {-993.761675});
  check("K20 CUDATutorial 69", {1}, {0, 2, 1, 3}, {3.4401897});
  // K15 ik_llama.cpp 1196: more keys than float16 can count
  const Saved many =
      forward(column({0}), Floats::Ones(70000, 1), Floats::Ones(70000, 1), {.tile = {1, 512}});
  CHECK(many.O(0, 0) == 1);
  CHECK(many.l[0] == 70000);
  CHECK(matches(many.LSE[0], 11.156251, 2e-6));
}

// What the statistics are for. Weights rebuilt from m and l are within the budget of results,
// those from LSE within ten times that.
void rebuilt_weights(const Forward& forward) {
  for (const bool causal : {false, true}) {
    const auto [Q, K, V] = random_head(20, 15, 8, 4);
    const Options options{.tile = {4, 8}, .causal = causal};
    const auto expected = exact(Q, K, V, options, true);
    const Saved s = forward(Q, K, V, options);
    Floats by_m_l = Floats::Zero(20, 15), by_LSE = Floats::Zero(20, 15);
    for (Index i = 0; i < 20; ++i) {
      const Index seen = causal ? std::max<Index>(0, i + 15 - 20 + 1) : 15;
      for (Index j = 0; j < seen; ++j) {
        const float score = Q.row(i).dot(K.row(j)) / std::sqrt(8.0f);
        by_m_l(i, j) = weight_from_m_l(score, s.m[i], s.l[i]);
        by_LSE(i, j) = weight_from_lse(score, s.LSE[i]);
      }
    }
    check_close(by_m_l, expected.P, kFloat32);
    check_close(by_LSE, expected.P, kFloat32Gradient);
  }
}

// K04 jax 27224, K16 ggml 13438: the same bits at every run, with memory left over from other
// work.
void repeatable(const Forward& forward) {
  const auto [Q, K, V] = random_head(70, 90, 24, 9);
  const Options options{.tile = {16, 32}, .causal = true};
  const Saved first = forward(Q, K, V, options);
  for (int run = 0; run < 10; ++run) {
    forward(K, Q, Q, {.tile = {32, 16}, .scale = 0.1});
    const Saved again = forward(Q, K, V, options);
    CHECK(same_outputs(again, first));
    CHECK(same_bits(again.m, first.m));
    CHECK(same_bits(again.l, first.l));
  }
}

void bad_arguments(const Forward& forward) {
  check_refused_shapes([&](const Floats& Q, const Floats& K, const Floats& V, Tiling tile) {
    return message_of([&] { forward(Q, K, V, {.tile = tile}); });
  });
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every ragged size agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device);
}

TEST_CASE("cpu: the result does not depend on the tile shape") { tile_shapes(on_cpu); }
TEST_CASE("device: the result does not depend on the tile shape") {
  if (have_device()) tile_shapes(on_device);
}

TEST_CASE("cpu: any finite scale is right and others are refused") { scales(on_cpu); }
TEST_CASE("device: any finite scale is right and others are refused") {
  if (have_device()) scales(on_device);
}

TEST_CASE("cpu: PyTorch's float64 results are met on synthetic and real data") {
  goldens_agree(on_cpu);
}
TEST_CASE("device: PyTorch's float64 results are met on synthetic and real data") {
  if (have_device()) goldens_agree(on_device);
}

TEST_CASE("cpu: l is from 1 to Nk") { bounds_of_l(on_cpu); }
TEST_CASE("device: l is from 1 to Nk") {
  if (have_device()) bounds_of_l(on_device);
}

TEST_CASE("cpu: a shift of all scores moves m and LSE only") { shifted_scores(on_cpu); }
TEST_CASE("device: a shift of all scores moves m and LSE only") {
  if (have_device()) shifted_scores(on_device);
}

TEST_CASE("cpu: rows without keys K01 K02 K03") { rows_without_keys(on_cpu); }
TEST_CASE("device: rows without keys K01 K02 K03") {
  if (have_device()) rows_without_keys(on_device);
}

TEST_CASE("cpu: NaN and infinity reach the statistics as NaN K13") { nan_and_infinity(on_cpu); }
TEST_CASE("device: NaN and infinity reach the statistics as NaN K13") {
  if (have_device()) nan_and_infinity(on_device);
}

TEST_CASE("cpu: reported cases K01 K02 K04 K08 K15 K20") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K01 K02 K04 K08 K15 K20") {
  if (have_device()) reported_cases(on_device);
}

TEST_CASE("cpu: the statistics give back every weight") { rebuilt_weights(on_cpu); }
TEST_CASE("device: the statistics give back every weight") {
  if (have_device()) rebuilt_weights(on_device);
}

TEST_CASE("cpu: the same bits at every run K04 K16") { repeatable(on_cpu); }
TEST_CASE("device: the same bits at every run K04 K16") {
  if (have_device()) repeatable(on_device);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(on_device);
}

// ---- errata

namespace {

// The largest relative errors of weights rebuilt in float32, over random rows of 64 scores
// around `level`, against the float64 softmax of the very same scores.
struct Errors {
  double m_l = 0, lse = 0;
};
Errors weight_errors(const Forward& forward, float level) {
  Errors errors;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> scores;
    const auto noise = random_matrix<float>(64, 1, seed, 0, 2.0);
    for (Index j = 0; j < 64; ++j) scores.push_back(level + noise(j, 0));
    const Saved s = forward_scores(forward, scores, 16);
    double sum = 0;
    for (const float score : scores) sum += std::exp(double{score} - double{s.m[0]});
    for (const float score : scores) {
      const double P = std::exp(double{score} - double{s.m[0]}) / sum;
      const auto relative = [&](float weight) { return std::abs(weight / P - 1); };
      errors.m_l = std::max(errors.m_l, relative(weight_from_m_l(score, s.m[0], s.l[0])));
      errors.lse = std::max(errors.lse, relative(weight_from_lse(score, s.LSE[0])));
    }
  }
  return errors;
}

void price_of_one_number(const Forward& forward) {
  const Errors near_300 = weight_errors(forward, 300), near_1000 = weight_errors(forward, 1000);
  CHECK(near_300.lse > 1e-5);
  CHECK(near_300.lse < 1.7e-5);
  CHECK(near_1000.lse > 2e-5);
  CHECK(near_1000.lse < 3.3e-5);
  CHECK(near_300.m_l < 6e-7);
  CHECK(near_1000.m_l < 6e-7);
  // K09 pytorch 125674: at 2^24 float32 LSE has lost ln 2 altogether
  const Saved s = forward_scores(forward, {16777216, 16777216});
  CHECK(s.m[0] == 16777216);
  CHECK(s.l[0] == 2);
  CHECK(s.LSE[0] == 16777216);
  CHECK(weight_from_m_l(16777216.0f, s.m[0], s.l[0]) == 0.5f);
  CHECK(weight_from_lse(16777216.0f, s.LSE[0]) == 1.0f);
}

}  // namespace

TEST_CASE("cpu: errata E10 weights from LSE cost precision and those from m and l do not") {
  price_of_one_number(on_cpu);
}
TEST_CASE("device: errata E10 weights from LSE cost precision and those from m and l do not") {
  if (have_device()) price_of_one_number(on_device);
}

TEST_CASE("cpu: errata E10 l under the name of L is no log-sum-exp") {
  const Saved s = forward_scores(on_cpu, {1, 3, 2, 4});
  CHECK(s.l[0] == doctest::Approx(1.5530).epsilon(1e-4));
  CHECK(s.LSE[0] == doctest::Approx(4.4402).epsilon(1e-4));
  // what a reader of the heading would compute, and what is right
  const double from_l_as_LSE = std::exp(4.0 - s.l[0]), right = std::exp(4.0) / 84.7910;
  CHECK(from_l_as_LSE == doctest::Approx(11.554).epsilon(1e-3));
  CHECK(right == doctest::Approx(0.6439).epsilon(1e-3));
  CHECK(weight_from_lse(4.0f, s.LSE[0]) == doctest::Approx(right).epsilon(1e-5));
}

TEST_CASE("cpu: errata E27 sums in a 16-bit type stop growing") {
  std::vector<float> scores(4096, 0.0f), values(4096, 0.0f);
  std::fill_n(values.begin(), 2048, 1.0f);
  const auto half = wrong::accumulate_in<Eigen::half>(scores, values);
  CHECK(half.l == 2048);
  CHECK(half.O == 1);
  const auto bfloat16 = wrong::accumulate_in<Eigen::bfloat16>(scores, values);
  CHECK(bfloat16.l == 256);
  CHECK(bfloat16.O == 1);
  // the same walk in float32, and the chapter's own code at Bc = 1
  const auto single = wrong::accumulate_in<float>(scores, values);
  CHECK(single.l == 4096);
  CHECK(single.O == 0.5);
  const Saved s =
      on_cpu(column({0}), column(scores), column(values), {.tile = {1, 1}, .scale = 1.0});
  CHECK(s.l[0] == 4096);
  CHECK(s.O(0, 0) == 0.5f);
}

TEST_CASE("cpu: errata E28 l without m says nothing") {
  const Saved zero = forward_scores(on_cpu, {0}), five = forward_scores(on_cpu, {5});
  CHECK(zero.l[0] == 1);
  CHECK(five.l[0] == 1);
  CHECK(zero.m[0] == 0);
  CHECK(five.m[0] == 5);
  CHECK(zero.LSE[0] == 0);
  CHECK(five.LSE[0] == 5);
}

// ---- the CPU's own

TEST_CASE("cpu: the worked example of the lesson") {
  const Saved s = on_cpu(column({1}), column({1, 3, 2, 4}), column({10, 20, 30, 40}),
                         {.tile = {1, 2}, .scale = 1.0});
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-4); };
  CHECK(s.m[0] == 4);
  CHECK(s.l[0] == near(1.5530));
  CHECK(s.LSE[0] == near(4.4402));
  CHECK(s.O(0, 0) == near(33.4291));
  const float scores[] = {1, 3, 2, 4};
  const double weights[] = {0.0321, 0.2369, 0.0871, 0.6439};
  for (int j = 0; j < 4; ++j) {
    CHECK(weight_from_m_l(scores[j], s.m[0], s.l[0]) ==
          doctest::Approx(weights[j]).epsilon(1e-3));
    CHECK(weight_from_lse(scores[j], s.LSE[0]) == doctest::Approx(weights[j]).epsilon(1e-3));
  }
}

TEST_CASE("cpu: O has the bits of chapter 04") {
  for (const Size size : {Size{21, 21}, {10, 33}, {33, 10}, {4, 0}}) {
    for (const bool causal : {false, true}) {
      const auto [Q, K, V] = random_head(size.Nq, size.Nk, 16, 6);
      Floats O(size.Nq, 16);
      causal_forward_cpu<float>(Q, K, V, O, {8, 12}, causal);
      CHECK(same_bits(on_cpu(Q, K, V, {.tile = {8, 12}, .causal = causal}).O, O));
    }
  }
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Index Nk : {0, 1, 20, 33, 64, 65, 129}) {
    const auto [Q, K, V] = random_head<double>(33, Nk, 16, 1);
    const Vector<double> nan = Vector<double>::Constant(33, NAN);
    SavedOf<double> s{Matrix<double>::Constant(33, 16, NAN), nan, nan, nan};
    saved_forward_cpu<double>(Q, K, V, s.O, s.m, s.l, s.LSE, {.Br = 8, .Bc = 64}, true);
    check_saved(s, reference_attention(Q, K, V, {.causal = true}), kFloat64);
  }
}

TEST_CASE("cpu: weights of a row of -inf are 0 and those of a NaN row NaN") {
  const float inf = kInf<float>;
  CHECK(weight_from_m_l(-inf, -inf, 0.0f) == 0);
  CHECK(weight_from_lse(-inf, -inf) == 0);
  CHECK(weight_from_m_l(-inf, 3.0f, 2.0f) == 0);
  CHECK(weight_from_lse(-inf, 3.0f) == 0);
  CHECK(std::isnan(weight_from_m_l(1.0f, -inf, NAN)));
  CHECK(std::isnan(weight_from_lse(1.0f, NAN)));
}

TEST_CASE("cpu: statistics of another size are refused by name") {
  const Head head = random_head(3, 4, 5);
  Floats O(3, 5);
  Vector<float> right(3), wrong(2);
  const auto message = [&](VectorOut<float> m, VectorOut<float> l, VectorOut<float> LSE) {
    return message_of([&] { saved_forward_cpu<float>(head.Q, head.K, head.V, O, m, l, LSE); });
  };
  CHECK(message(wrong, right, right) == "m must be [3], found [2]");
  CHECK(message(right, wrong, right) == "l must be [3], found [2]");
  CHECK(message(right, right, wrong) == "LSE must be [3], found [2]");
  CHECK(message(right, right, right) == "accepted");
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  const auto [Q, K, V] = random_head(9, 5, 4);
  const Options options{.tile = {INT64_MAX, INT64_MAX}, .causal = true};
  check_saved(on_cpu(Q, K, V, options), exact(Q, K, V, options));
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(100, 150, 64, 11);
  check_saved(on_device(Q, K, V, {.causal = true}), on_cpu(Q, K, V, {.causal = true}));
}

TEST_CASE("device: O is that of chapter 04") {
  if (!have_device()) return;
  for (const bool causal : {false, true}) {
    const auto [Q, K, V] = random_head(21, 33, 16, 6);
    const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
    DeviceMatrix<float> O(21, 16);
    causal_forward_cuda(device_Q, device_K, device_V, O, {8, 12}, causal);
    check_close(on_device(Q, K, V, {.tile = {8, 12}, .causal = causal}).O, to_host(O),
                {1e-7, 1e-7});
  }
}

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Head h = random_head(20, 27, 10, 12);
  const auto run = [&] { return on_device(h.Q, h.K, h.V, {.tile = {8, 8}, .causal = true}); };
  const Saved first = run();
  in_other_thread_orders([&] { CHECK(same_outputs(run(), first)); });
}

TEST_CASE("device: tiles that do not fit and statistics of another size are refused") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(2, 2, 256);
  const std::string expected = does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552);
  CHECK_THROWS_WITH_AS(on_device(Q, K, V, {.tile = {64, 64}}), expected.c_str(),
                       std::invalid_argument);
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(2, 256);
  DeviceArray<float> m(2), l(2), LSE(3);
  CHECK_THROWS_WITH_AS(saved_forward_cuda(device_Q, device_K, device_V, O, m, l, LSE, {8, 8}),
                       "LSE must be [2], found [3]", std::invalid_argument);
}

TEST_CASE("device: the statistics cost three numbers a row") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(10, 17, 6);
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(10, 6);
  DeviceArray<float> m(10), l(10), LSE(10);
  reset_device_traffic();
  saved_forward_cuda(device_Q, device_K, device_V, O, m, l, LSE, {.Br = 4, .Bc = 8});
  const auto traffic = device_traffic();
  if (!counted(traffic)) return;
  CHECK(traffic->read_bytes == 4 * (10 * 6 + 3 * 2 * 17 * 6));
  CHECK(traffic->written_bytes == 4 * (10 * 6 + 3 * 10));
}

// ---- the executable

namespace {

template <class T>
SavedOf<T> load_saved(const std::string& folder) {
  return {load_matrix<T>(folder, "o"), load_vector<T>(folder, "m"), load_vector<T>(folder, "l"),
          load_vector<T>(folder, "lse")};
}

// Runs the executable on golden heads, and checks the four files.
void program_on_real_data(const std::string& device) {
  int heads = 0;
  for (const Golden& g : goldens("real")) {
    if (++heads % 8 != 1) continue;  // a process a head: some of them are enough
    for (const bool causal : {true, false}) {
      CAPTURE(g.name);
      CAPTURE(causal);
      const TemporaryFolder folder;
      const std::string out = folder.file("out/deep"), mask = causal ? "_causal" : "";
      Arguments arguments = input_files(g.folder, {"q", "k", "v"});
      if (causal) arguments.push_back("--causal");
      run_on(device, arguments, out);
      check_close(load_matrix<float>(out, "o"), causal ? g.O_causal : g.O, kFloat32);
      for (const std::string name : {"m", "l", "lse"}) {
        CAPTURE(name);
        const auto m = load_vector<double>(g.folder, "m" + mask);
        check_close(load_vector<float>(out, name), load_vector<double>(g.folder, name + mask),
                    name == "l" ? budget_of_l(m) : kFloat32);
      }
    }
  }
  CHECK(heads >= 24);
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}),
               {"LSE = m + ln l = 4.4402", "From m and l P = 0.5, 0.5; from LSE P = 1, 1."});
}

TEST_CASE("cpu: executable on a real sentence meets PyTorch") { program_on_real_data("cpu"); }
TEST_CASE("device: executable on a real sentence meets PyTorch") {
  if (have_device()) program_on_real_data(device_kind());
}

TEST_CASE("cpu: executable computes f8 input in float64 and keeps its type") {
  const TemporaryFolder folder;
  const auto [Q, K, V] = random_head<double>(7, 5, 3);
  const Arguments inputs =
      put_inputs(folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}});
  const std::string out = folder.file("out");
  const ProgramResult r = run(inputs, {"--br", "2", "--bc", "3", "--causal", "--scale", "-0.7",
                                       "--out", out, "--json"});
  REQUIRE(r.exit_code == 0);
  CHECK(contains(r.out, "\"empty_rows\":2"));
  check_saved(load_saved<double>(out),
              reference_attention(Q, K, V, {.scale = -0.7, .causal = true}), kFloat64);
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto check = [&](Index Nq, Index, const Arguments& inputs, const std::string& device) {
    const std::string out = folder.file("out");
    run_on(device, inputs, out);
    const Vector<double> none = Vector<double>::Zero(Nq), empty = none.array() + kMinusInf;
    check_saved(load_saved<float>(out),
                SavedOf<double>{Matrix<double>::Zero(Nq, 4), empty, none, empty}, {0, 0});
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  check_refused_heads({"--causal"});
  check_refused(words("--scale nan"), "--scale");
  if (simulated()) check_refused(words("--device sim --d 256 --n 4 --br 64 --bc 64"), "232448");
}

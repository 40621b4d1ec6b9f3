// Chapter 01: online softmax against the textbook's in float64, on the CPU and on the device.
#include "chapters/01_online_softmax/online_softmax.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "chapters/01_online_softmax/raw_launch.hpp"
#include "chapters/01_online_softmax/wrong_versions.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

constexpr float kInfinity = kInf<float>, kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- the textbook, in float64

struct Exact {
  Vector<double> p;
  double m, l, lse;
};

template <class T>
Exact exact_softmax(const Vector<T>& x) {
  Exact exact{Vector<double>::Zero(x.size()), -INFINITY, 0, -INFINITY};
  bool nan = false;
  for (const T value : x) {
    exact.m = std::max(exact.m, double{value});
    nan = nan || std::isnan(value) || double{value} == INFINITY;
  }
  if (nan) {
    exact.p.setConstant(NAN);
    exact.m = exact.l = exact.lse = NAN;
    return exact;
  }
  if (exact.m == -INFINITY) return exact;
  for (const T value : x) exact.l += std::exp(double{value} - exact.m);
  for (Index i = 0; i < x.size(); ++i) exact.p[i] = std::exp(double{x[i]} - exact.m) / exact.l;
  exact.lse = exact.m + std::log(exact.l);
  return exact;
}

// ---- what is tested: the CPU in two types, the device in three widths

template <class T>
struct Result {
  Vector<T> p;
  SoftmaxState<T> state;
};

template <class T>
Result<T> on_cpu(const Vector<T>& x) {
  Result<T> result{Vector<T>::Constant(x.size(), std::numeric_limits<T>::quiet_NaN()), {}};
  check_unchanged([&] { result.state = online_softmax_cpu<T>(x, result.p); }, x);
  return result;
}

// blocks: of the grid; 0 for as many as the chapter advises
Result<float> on_device(const Vector<float>& x, SoftmaxWidth width, std::int64_t blocks = 0) {
  const DeviceArray<float> device_x = to_device(x);
  DeviceArray<float> p(x.size());  // NaN, like any new array
  if (blocks == 0) blocks = online_softmax_blocks(x.size());
  DeviceMatrix<float> states(1 + blocks, 2);
  online_softmax_cuda(device_x, p, states, width);
  check_holds(device_x, x);
  const Floats ml = to_host(states);
  return {to_host(p), {ml(0, 0), ml(0, 1)}};
}

struct Softmax {
  std::string name;
  std::function<Result<float>(const Vector<float>&)> run;
};

std::vector<Softmax> cpu() { return {{"cpu", on_cpu<float>}}; }
std::vector<Softmax> device() {
  const auto grid = [](std::int64_t blocks) {
    return
        [blocks](const Vector<float>& x) { return on_device(x, SoftmaxWidth::grid, blocks); };
  };
  return {{"thread", [](const Vector<float>& x) { return on_device(x, SoftmaxWidth::thread); }},
          {"block", [](const Vector<float>& x) { return on_device(x, SoftmaxWidth::block); }},
          {"grid", grid(0)},
          {"grid of 1", grid(1)},
          {"grid of 3", grid(3)},
          {"a row", [](const Vector<float>& x) {
             // the rows kernel gives no m and l, so that only p is compared here
             const Exact exact = exact_softmax(x);
             DeviceMatrix<float> X(x.data(), 1, x.size()), P(1, x.size());
             online_softmax_rows_cuda(X, P);
             CHECK(same_bits(to_host(X).row(0).transpose(), x));
             return Result<float>{to_host(P).row(0).transpose(),
                                  {static_cast<float>(exact.m), static_cast<float>(exact.l)}};
           }}};
}

// ---- comparison

// Each weight to 10^-5 of itself: an absolute bound would let any small weight pass. A weight
// below float32's range may be 0.
template <class T>
void check_weights(const Vector<T>& p, const Vector<double>& expected, double relative) {
  REQUIRE(p.size() == expected.size());
  for (Index i = 0; i < p.size(); ++i) {
    const double actual = p[i], e = expected[i];
    if (matches(actual, e, relative * e + 1e-37, true)) continue;
    CAPTURE(i);
    CAPTURE(actual);
    CAPTURE(e);
    FAIL_CHECK("the first weight that differs");
    return;
  }
}

void check_right(const Result<float>& result, const Vector<float>& x) {
  const Exact exact = exact_softmax(x);
  check_weights(result.p, exact.p, 1e-5);
  const SoftmaxState<float> state = result.state;
  CHECK(matches(state.l, exact.l, 1e-5 * exact.l, true));
  if (std::isnan(exact.l)) return;  // then m is unspecified
  CHECK(state.m == exact.m);
  if (exact.l == 0) return;
  CHECK(state.l >= 1.0f);
  CHECK(state.l <= static_cast<float>(x.size()) * 1.000001f);
  CHECK(matches(lse(state), exact.lse, 1e-6 + 1e-5 * std::max(1.0, std::abs(exact.lse))));
}

void check_right(const std::vector<Softmax>& softmaxes, const Vector<float>& x) {
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    check_right(softmax.run(x), x);
  }
}

Vector<float> random_vector(Index N, std::uint64_t seed, double deviation = 1.0) {
  return random_matrix<float>(N, 1, seed, 0, deviation);
}

std::vector<double> list(const Vector<float>& x) { return {x.begin(), x.end()}; }

void check_list(const std::vector<double>& actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CAPTURE(i);
    CAPTURE(actual[i]);
    CAPTURE(expected[i]);
    CHECK(matches(actual[i], expected[i], 5e-5, true));
  }
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// ---- bodies that both devices run

void check_example(const std::vector<Softmax>& softmaxes) {
  const Vector<float> x = vector({1, 3, 2, 4});
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    const Result<float> result = softmax.run(x);
    check_list(list(result.p), {0.0321, 0.2369, 0.0871, 0.6439});
    CHECK(result.state.m == 4.0f);
    CHECK(matches(result.state.l, 1.5530, 5e-5));
    CHECK(matches(lse(result.state), 4.4402, 5e-5));
  }
}

void check_sizes(const std::vector<Softmax>& softmaxes) {
  for (const Index N :
       {0,   1,   2,   3,    4,    5,    31,   32,   33,   127,  128,  129,
        255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 4097, 8193, 100003}) {
    CAPTURE(N);
    check_right(softmaxes, random_vector(N, 1));
  }
}

void check_order(const std::vector<Softmax>& softmaxes) {
  for (const Index N : {5, 300, 5000}) {
    CAPTURE(N);
    const Vector<float> x = random_vector(N, 2, 5.0);
    Vector<float> sorted = x;
    std::sort(sorted.begin(), sorted.end());
    check_right(softmaxes, sorted);            // a new maximum each time
    check_right(softmaxes, sorted.reverse());  // never again
    Vector<float> shuffled = x;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
    check_right(softmaxes, shuffled);
    check_right(softmaxes, x);
  }
}

void check_shift(const std::vector<Softmax>& softmaxes) {
  // multiples of 1/16, so that no sum below is rounded
  const Vector<float> x = (random_vector(3001, 4, 3.0) * 16).array().round() / 16;
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    const Result<float> plain = softmax.run(x);
    for (const float shift : {-8192.0f, -100.0f, 0.0625f, 100.0f, 8192.0f}) {
      CAPTURE(shift);
      const Result<float> shifted = softmax.run(x.array() + shift);
      CHECK(same_bits(shifted.p, plain.p));
      CHECK(shifted.state.m == plain.state.m + shift);
      if (softmax.name != "a row") CHECK(shifted.state.l == plain.state.l);
    }
  }
}

void check_equal_elements(const std::vector<Softmax>& softmaxes) {
  for (const Index N : {1, 2, 1000, 65536}) {
    for (const float value : {0.0f, -1000.0f, -3e38f, 3e38f}) {
      CAPTURE(N);
      CAPTURE(value);
      for (const Softmax& softmax : softmaxes) {
        INFO(softmax.name);
        const Result<float> result = softmax.run(Vector<float>::Constant(N, value));
        CHECK(result.state.m == value);
        CHECK(result.state.l == static_cast<float>(N));  // the exponent of the maximum is 0
        CHECK(result.p.minCoeff<Eigen::PropagateNaN>() == result.p.maxCoeff());
        CHECK(result.p[0] == 1.0f / static_cast<float>(N));
      }
    }
  }
}

void check_very_negative(const std::vector<Softmax>& softmaxes) {
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    const Result<float> result = softmax.run(Vector<float>::Constant(512, -1000));
    for (const float p : result.p) CHECK(p == 1.0f / 512);
    CHECK(matches(lse(result.state), -993.7617, 1e-3));
  }
}

void check_magnitudes(const std::vector<Softmax>& softmaxes) {
  for (const Vector<float>& x :
       {vector({-3e38f, 3e38f}), vector({3e38f, -3e38f}), vector({3e38f, 3e38f, -3e38f}),
        vector({-3e38f, -2.9e38f}), vector({0, -3e38f, 88, 89}), vector({1000, 999, -1000}),
        vector({-1000, -1001, -1e30f}), vector({1e-40f, 0, -1e-40f}),
        vector({0, -103, -104, -200}), vector({-60000, -60001}),
        vector({16777216, 16777216})}) {
    CAPTURE(x.transpose());
    check_right(softmaxes, x);
  }
  check_right(softmaxes, random_vector(3000, 5, 1e4));
  check_right(softmaxes, random_vector(3000, 6, 1e-4));
}

void check_special_values(const std::vector<Softmax>& softmaxes) {
  // all hidden
  for (const Index N : {1, 2, 33, 1025, 5001}) {
    CAPTURE(N);
    check_right(softmaxes, Vector<float>::Constant(N, -kInfinity));
  }
  // one special value at every kind of place, over finite or hidden others
  for (const float special : {-kInfinity, kInfinity, kNaN}) {
    for (const Index N : {1, 7, 300, 4099}) {
      for (const Index place : {Index{0}, N / 2, N - 1}) {
        CAPTURE(special);
        CAPTURE(N);
        CAPTURE(place);
        Vector<float> x = random_vector(N, 7);
        x[place] = special;
        check_right(softmaxes, x);
        x.setConstant(-kInfinity);
        x[place] = special;
        check_right(softmaxes, x);
      }
    }
  }
  // hidden before, hidden after, hidden between: they weigh exactly 0
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    Vector<float> x = Vector<float>::Constant(3000, -kInfinity);
    x[1500] = -3e38f;
    x[2999] = -3e38f;
    const Result<float> result = softmax.run(x);
    CHECK(result.p[0] == 0.0f);
    CHECK(result.p[1500] == 0.5f);
    CHECK(result.p[2999] == 0.5f);
    CHECK(result.p.sum() == 1.0f);
    CHECK(result.state.m == -3e38f);
    CHECK(result.state.l == 2.0f);
  }
  // hidden for longer than any thread reads at a time, then far below 0
  Vector<float> late = Vector<float>::Constant(40000, -kInfinity);
  late.tail(5000).setConstant(-1000);
  check_right(softmaxes, late);
  check_right(softmaxes, vector({kInfinity, -kInfinity}));
  check_right(softmaxes, vector({-kInfinity, kNaN, kInfinity, 1}));
}

void check_same_bits_again(const std::vector<Softmax>& softmaxes) {
  const Vector<float> x = random_vector(30011, 8);
  for (const Softmax& softmax : softmaxes) {
    INFO(softmax.name);
    const Result<float> first = softmax.run(x), second = softmax.run(x);
    CHECK(same_bits(first.p, second.p));
    CHECK(first.state.l == second.state.l);
  }
}

// ---- rows

using Rows = std::function<Floats(const Floats&)>;

Floats rows_on_cpu(const Floats& X) {
  Floats P = Floats::Constant(X.rows(), X.cols(), kNaN);
  check_unchanged([&] { online_softmax_rows_cpu<float>(X, P); }, X);
  return P;
}

Floats rows_on_device(const Floats& X) {
  const DeviceMatrix<float> device_X = to_device(X);
  DeviceMatrix<float> P(X.rows(), X.cols());
  online_softmax_rows_cuda(device_X, P);
  check_holds(device_X, X);
  return to_host(P);
}

void check_each_row(const Floats& P, const Floats& X) {
  for (Index r = 0; r < X.rows(); ++r) {
    CAPTURE(r);
    check_weights<float>(P.row(r), exact_softmax<float>(X.row(r)).p, 1e-5);
  }
}

void check_rows(const Rows& rows) {
  for (const Index count : {0, 1, 3, 9}) {
    for (const Index cols :
         {0, 1, 2, 3, 4, 5, 6, 7, 8, 31, 33, 63, 64, 65, 511, 513, 2050, 4099}) {
      CAPTURE(count);
      CAPTURE(cols);
      const Floats X = random_matrix<float>(count, cols, 9, 0, 2.0);
      const Floats P = rows(X);
      REQUIRE(P.rows() == count);
      REQUIRE(P.cols() == cols);
      check_each_row(P, X);
    }
  }
}

void check_rows_apart(const Rows& rows) {
  for (const Index cols : {1, 3, 40, 1030}) {
    CAPTURE(cols);
    Floats X = random_matrix<float>(7, cols, 10, 0);
    X.row(1).setConstant(-kInfinity);
    X(2, cols - 1) = kNaN;
    X(4, 0) = kInfinity;
    X.row(5).array() -= 3e38f;
    check_each_row(rows(X), X);
  }
}

// ---- the CPU's pieces

template <class T>
SoftmaxState<T> state_of(const Vector<T>& x) {
  SoftmaxState<T> state;
  for (const T value : x) push(state, value);
  return state;
}

bool same(const SoftmaxState<float>& a, const SoftmaxState<float>& b) {
  return same_bits(vector({a.m, a.l}), vector({b.m, b.l}));
}

}  // namespace

// ---- values

TEST_CASE("cpu: the worked example of the lesson") { check_example(cpu()); }
TEST_CASE("device: the worked example of the lesson") {
  if (have_device()) check_example(device());
}

TEST_CASE("cpu: the worked example element by element") {
  SoftmaxState<double> state;
  const auto step = [&](double x, double m, double l) {
    push(state, x);
    CHECK(state.m == m);
    CHECK(matches(state.l, l, 5e-5));
  };
  CHECK(state.m == -kInf<double>);
  CHECK(state.l == 0.0);
  step(1, 1, 1);
  step(3, 3, 1.1353);
  step(2, 3, 1.5032);
  step(4, 4, 1.5530);
}

TEST_CASE("cpu: E1 and E2 and E25 - the right version is right and the wrong ones are wrong") {
  const std::vector<double> x{1, 2, 3};
  check_list(list(on_cpu(vector({1, 2, 3})).p), {0.0900, 0.2447, 0.6652});

  check_list(wrong::softmax_l_added(x), {0.2677, 0.2677, 0.2677});
  CHECK(matches(sum(wrong::softmax_l_added(x)), 0.803, 5e-4));

  check_list(wrong::softmax_stored_early(x), {0.6652, 0.6652, 0.6652});
  CHECK(matches(sum(wrong::softmax_stored_early(x)), 1.996, 5e-4));

  check_list(list(on_cpu(vector({-kInfinity, 0})).p), {0, 1});
  check_list(wrong::softmax_unguarded({-INFINITY, 0}), {NAN, NAN});
  // where the maximum comes first the faults do not show
  check_list(wrong::softmax_l_added({3, 2, 1}), {0.6652, 0.2447, 0.0900});
  check_list(wrong::softmax_unguarded({0, -INFINITY}), {1, 0});
}
TEST_CASE("device: E1 and E2 and E25 - the right version is right") {
  if (!have_device()) return;
  for (const Softmax& softmax : device()) {
    INFO(softmax.name);
    check_list(list(softmax.run(vector({1, 2, 3})).p), {0.0900, 0.2447, 0.6652});
    check_list(list(softmax.run(vector({-kInfinity, 0})).p), {0, 1});
  }
}

TEST_CASE("cpu: every size agrees with the textbook in float64") { check_sizes(cpu()); }
TEST_CASE("device: every size agrees with the textbook in float64") {
  if (have_device()) check_sizes(device());
}

TEST_CASE("cpu: rising and falling and shuffled sequences") { check_order(cpu()); }
TEST_CASE("device: rising and falling and shuffled sequences") {
  if (have_device()) check_order(device());
}

TEST_CASE("cpu: a shift of all elements changes m alone") { check_shift(cpu()); }
TEST_CASE("device: a shift of all elements changes m alone") {
  if (have_device()) check_shift(device());
}

TEST_CASE("cpu: equal elements weigh 1/N each and l is N") { check_equal_elements(cpu()); }
TEST_CASE("device: equal elements weigh 1/N each and l is N") {
  if (have_device()) check_equal_elements(device());
}

TEST_CASE("cpu: K15-106 FluxML/NNlib.jl 506 - 512 scores of -1000") {
  check_very_negative(cpu());
}
TEST_CASE("device: K15-106 FluxML/NNlib.jl 506 - 512 scores of -1000") {
  if (have_device()) check_very_negative(device());
}

TEST_CASE("cpu: elements near the ends of float32") { check_magnitudes(cpu()); }
TEST_CASE("device: elements near the ends of float32") {
  if (have_device()) check_magnitudes(device());
}

TEST_CASE("cpu: -inf and +inf and NaN at every place") { check_special_values(cpu()); }
TEST_CASE("device: -inf and +inf and NaN at every place") {
  if (have_device()) check_special_values(device());
}

TEST_CASE("cpu: the same input gives the same bits") { check_same_bits_again(cpu()); }
TEST_CASE("device: the same input gives the same bits") {
  if (have_device()) check_same_bits_again(device());
}

TEST_CASE("cpu: float64 agrees to float64") {
  for (const Index N : {0, 1, 2, 127, 128, 129, 1000, 100003}) {
    CAPTURE(N);
    const Vector<double> x = random_matrix<double>(N, 1, 11, 0, 30.0);
    const Result<double> result = on_cpu<double>(x);
    const Exact exact = exact_softmax(x);
    check_weights(result.p, exact.p, 1e-12);
    CHECK(result.state.m == exact.m);
    CHECK(matches(result.state.l, exact.l, 1e-12 * exact.l));
    CHECK(matches(lse(result.state), exact.lse, 1e-11));
  }
  const Vector<double> far = Vector<double>::Constant(3, -1e308);
  CHECK(on_cpu<double>(far).p[2] == 1.0 / 3);
}

TEST_CASE("cpu: a long sum of equal terms keeps growing beyond 2^24") {
  const Index N = (Index{1} << 24) + 8;
  const Vector<float> x = Vector<float>::Zero(N);
  CHECK(softmax_state<float>(x).l == 16777224.0f);
  SoftmaxState<float> one_by_one = state_of(x);
  CHECK(one_by_one.l == 16777216.0f);  // which is why softmax_state halves

  // a term of 0.3012 behind one of 1: rounded the same way again and again
  Vector<float> y = Vector<float>::Constant(262144, -1.2f);
  y[0] = 0;
  const double l = exact_softmax(y).l;
  CHECK(matches(softmax_state<float>(y).l, l, 1e-6 * l));
  CHECK(std::abs(state_of(y).l - l) > 5e-4 * l);
}

TEST_CASE("cpu: p may be x") {
  Vector<float> x = random_vector(1000, 12);
  const Vector<float> expected = on_cpu(x).p;
  online_softmax_cpu<float>(x, x);
  CHECK(same_bits(x, expected));
}

// ---- states

TEST_CASE("cpu: a split at every point and a merge change nothing beyond rounding") {
  const Vector<float> x = random_vector(100, 13, 4.0);
  const Exact exact = exact_softmax(x);
  for (Index at = 0; at <= x.size(); ++at) {
    CAPTURE(at);
    const auto left = state_of<float>(x.head(at)), right = state_of<float>(x.tail(100 - at));
    const SoftmaxState<float> both = merge(left, right);
    CHECK(both.m == exact.m);
    CHECK(matches(both.l, exact.l, 1e-5 * exact.l));
  }
}

TEST_CASE("cpu: merging is commutative to the bit and associative within rounding") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const Vector<float> x = random_vector(30, 100 + seed, 10.0);
    const auto a = state_of<float>(x.head(10)), b = state_of<float>(x.segment(10, 10)),
               c = state_of<float>(x.tail(10));
    CHECK(same(merge(a, b), merge(b, a)));
    const auto left = merge(merge(a, b), c), right = merge(a, merge(b, c));
    CHECK(left.m == right.m);
    CHECK(matches(left.l, right.l, 1e-6 * right.l));
  }
}

TEST_CASE("cpu: an empty part is neutral whatever its m is") {
  const SoftmaxState<float> some{-3e38f, 2.5f}, nan{-kInfinity, kNaN};
  for (const float m : {-kInfinity, 0.0f, 7.0f, 3e38f, kInfinity, kNaN}) {
    for (const float zero : {0.0f, -0.0f}) {
      CAPTURE(m);
      const SoftmaxState<float> empty{m, zero};
      CHECK(same(merge(some, empty), some));
      CHECK(same(merge(empty, some), some));
      CHECK(merge(empty, empty).l == 0.0f);
      CHECK(merge(empty, SoftmaxState<float>{}).l == 0.0f);
      CHECK(std::isnan(merge(nan, empty).l));
      CHECK(std::isnan(merge(empty, nan).l));
      CHECK(lse(empty) == -kInfinity);
    }
  }
  CHECK(same(merge(SoftmaxState<float>{}, SoftmaxState<float>{}), SoftmaxState<float>{}));
}

TEST_CASE("cpu: NaN is not empty") {
  const SoftmaxState<float> some{1, 2};
  for (const float m : {-kInfinity, 0.0f, kInfinity, kNaN}) {
    CAPTURE(m);
    const SoftmaxState<float> nan{m, kNaN};
    CHECK(std::isnan(merge(some, nan).l));
    CHECK(std::isnan(merge(nan, some).l));
    CHECK(std::isnan(merge(nan, nan).l));
    CHECK(std::isnan(lse(nan)));
    SoftmaxState<float> pushed = nan;
    push(pushed, 3.0f);
    CHECK(std::isnan(pushed.l));
  }
}

TEST_CASE("cpu: far maxima merge without overflow") {
  const SoftmaxState<float> low{-3e38f, 5}, high{3e38f, 1.25f};
  CHECK(same(merge(low, high), high));
  CHECK(same(merge(high, low), high));
  CHECK(matches(lse(SoftmaxState<float>{-1000, 512}), -993.7617, 1e-4));
}

// ---- rows

TEST_CASE("cpu: rows of every size") { check_rows(rows_on_cpu); }
TEST_CASE("device: rows of every size") {
  if (have_device()) check_rows(rows_on_device);
}

TEST_CASE("cpu: a row does not see its neighbours") { check_rows_apart(rows_on_cpu); }
TEST_CASE("device: a row does not see its neighbours") {
  if (have_device()) check_rows_apart(rows_on_device);
}

TEST_CASE("cpu: rows of a larger matrix pass without a copy") {
  const Floats X = random_matrix<float>(6, 50, 14, 0);
  Floats P = Floats::Constant(6, 50, kNaN);
  online_softmax_rows_cpu<float>(X.block(1, 10, 3, 20), P.block(1, 10, 3, 20));
  CHECK(std::isnan(P(1, 9)));
  CHECK(std::isnan(P(4, 10)));
  check_weights<float>(P.block(2, 10, 1, 20).transpose(),
                       exact_softmax<float>(X.block(2, 10, 1, 20).transpose()).p, 1e-5);
}

TEST_CASE("device: rows longer than shared memory") {
  if (!have_device()) return;
  for (const Index cols : {58367, 70001}) {
    CAPTURE(cols);
    const Floats X = random_matrix<float>(3, cols, 15, 0);
    check_each_row(rows_on_device(X), X);
  }
}

// ---- the device's own promises

TEST_CASE("device: each block leaves the state of its part") {
  if (!have_device()) return;
  const Vector<float> x = random_vector(10001, 16, 3.0);
  DeviceArray<float> p(x.size());
  DeviceMatrix<float> states(1 + 5, 2);
  online_softmax_cuda(to_device(x), p, states);
  const Floats ml = to_host(states);
  SoftmaxState<float> all;
  for (Index b = 1; b <= 5; ++b) {
    const SoftmaxState<float> part{ml(b, 0), ml(b, 1)};
    CHECK(part.l >= 1.0f);
    CHECK(part.l <= 2100.0f);  // no block did it all
    all = merge(all, part);
  }
  CHECK(all.m == ml(0, 0));
  CHECK(matches(all.l, ml(0, 1), 1e-6 * ml(0, 1)));
}

TEST_CASE("device: blocks without elements are empty") {
  if (!have_device()) return;
  DeviceArray<float> p(3);
  DeviceMatrix<float> states(1 + 4, 2);
  online_softmax_cuda(to_device(vector({1, 3, 2})), p, states);
  const Floats ml = to_host(states);
  for (Index b = 2; b <= 4; ++b) {
    CHECK(ml(b, 0) == -kInfinity);
    CHECK(ml(b, 1) == 0.0f);
  }
  CHECK(ml(0, 0) == 3.0f);
}

TEST_CASE("device: a thread merges the states of several blocks") {
  if (!have_device()) return;
  // 600 blocks of 512 threads; the last of them have elements, too, and the larger ones
  Vector<float> x = random_vector(1200003, 23);
  for (Index i = 0; i < x.size(); ++i) x[i] += 1e-5f * static_cast<float>(i);
  check_right(on_device(x, SoftmaxWidth::grid, 600), x);
}

TEST_CASE("device: thread and block write row 0 alone") {
  if (!have_device()) return;
  for (const SoftmaxWidth width : {SoftmaxWidth::thread, SoftmaxWidth::block}) {
    DeviceArray<float> p(40);
    DeviceMatrix<float> one(1, 2), more(3, 2);
    const DeviceArray<float> x = to_device(random_vector(40, 17));
    online_softmax_cuda(x, p, one, width);
    online_softmax_cuda(x, p, more, width);
    const Floats ml = to_host(more);
    CHECK(same_bits(to_host(one), Floats(ml.topRows(1))));
    CHECK(std::isnan(ml(1, 0)));
    CHECK(std::isnan(ml(2, 1)));
  }
}

// The lesson's count: x twice and p once, in bytes; a row that stays on chip once.
TEST_CASE("device: what passes through global memory") {
  if (!have_device()) return;
  if (!counted(device_traffic())) return;
  const auto traffic = [](const auto& run) {
    reset_device_traffic();
    run();
    return *device_traffic();
  };
  for (const Index N : {1000, 1003}) {
    CAPTURE(N);
    const DeviceArray<float> x = to_device(random_vector(N, 18));
    DeviceArray<float> p(N);
    DeviceMatrix<float> one(1, 2), four(1 + 4, 2);
    for (const SoftmaxWidth width : {SoftmaxWidth::thread, SoftmaxWidth::block}) {
      const Traffic moved = traffic([&] { online_softmax_cuda(x, p, one, width); });
      CHECK(moved.read_bytes == 2 * 4 * N);
      CHECK(moved.written_bytes == 4 * N + 8);
    }
    const Traffic moved = traffic([&] { online_softmax_cuda(x, p, four); });
    CHECK(moved.read_bytes == 2 * 4 * N + 4 * 4 * 8);  // each of 4 blocks reads 4 states
    CHECK(moved.written_bytes == 4 * N + 4 * 8 + 8);
  }
  for (const Index cols : {8, 77, 4096, 60001}) {
    CAPTURE(cols);
    const DeviceMatrix<float> X = to_device(random_matrix<float>(3, cols, 19, 0));
    DeviceMatrix<float> P(3, cols);
    const Traffic moved = traffic([&] { online_softmax_rows_cuda(X, P); });
    CHECK(moved.written_bytes == 4 * 3 * cols);
    if (cols < 58000) {
      CHECK(moved.read_bytes == 4 * 3 * cols);
    } else {
      CHECK(moved.read_bytes > 4 * 3 * cols);
      CHECK(moved.read_bytes < 4 * 3 * cols * 11 / 10);  // only what did not fit
    }
  }
}

// ---- refusals

TEST_CASE("cpu: sizes that do not fit are refused") {
  const Vector<float> x = random_vector(5, 21);
  Vector<float> p(4);
  CHECK(message_of([&] { online_softmax_cpu<float>(x, p); }) ==
        "p must be as long as x, 5, found 4");
  const Floats X = random_matrix<float>(2, 3, 21, 0);
  Floats P(3, 2);
  CHECK(message_of([&] { online_softmax_rows_cpu<float>(X, P); }) ==
        "P must be [2, 3], found [3, 2]");
}

TEST_CASE("device: sizes that do not fit are refused") {
  if (!have_device()) return;
  DeviceArray<float> x(5), p(5), short_p(4);
  DeviceMatrix<float> states(2, 2), one(1, 2), wide(2, 3), none(0, 2);
  CHECK(message_of([&] { online_softmax_cuda(x, short_p, states); }) ==
        "p must be as long as x, 5, found 4");
  CHECK(contains(message_of([&] { online_softmax_cuda(x, x, states); }), "p must not be x"));
  CHECK(message_of([&] { online_softmax_cuda(x, p, one); }) ==
        "states must be [2, 2], found [1, 2]");
  CHECK(message_of([&] { online_softmax_cuda(x, p, wide); }) ==
        "states must be [2, 2], found [2, 3]");
  CHECK(message_of([&] { online_softmax_cuda(x, p, none, SoftmaxWidth::block); }) ==
        "states must be [1, 2], found [0, 2]");
  DeviceMatrix<float> X(2, 3), P(3, 2);
  CHECK(message_of([&] { online_softmax_rows_cuda(X, P); }) ==
        "P must be [2, 3], found [3, 2]");
  CHECK(contains(message_of([&] { online_softmax_rows_cuda(X, X); }), "P must not be X"));
}

TEST_CASE("device: too many elements for a thread are refused") {
  if (!have_device()) return;
  DeviceArray<float> x(131073), p(131073);
  DeviceMatrix<float> states(2, 2);
  const std::string message =
      message_of([&] { online_softmax_cuda(x, p, states, SoftmaxWidth::thread); });
  CHECK(contains(message, "131073"));
  CHECK(contains(message, "131072"));
  DeviceArray<float> just(131072), just_p(131072);
  CHECK(message_of([&] { online_softmax_cuda(just, just_p, states, SoftmaxWidth::thread); }) ==
        "accepted");
}

TEST_CASE("device: the advised number of blocks") {
  if (!have_device()) return;
  CHECK(online_softmax_blocks(0) == 1);
  CHECK(online_softmax_blocks(1) == 1);
  CHECK(online_softmax_blocks(100003) >= 10);
  const std::int64_t most = online_softmax_blocks(std::int64_t{1} << 40);
  CHECK(most >= device_limits().multiprocessors);
  CHECK(most <= 2 * device_limits().multiprocessors);
}

// ---- the executable

namespace {

// Refused, and with nothing on standard output.
void check_usage_error(const Arguments& arguments, std::initializer_list<std::string> parts) {
  CHECK(check_refused(arguments, parts).out == "");
}

Vector<float> weights_in(const std::string& folder) {
  return load_vector<float>(folder, "softmax");
}

template <class T>
void check_files(const std::string& device) {
  const TemporaryFolder folder;
  const std::string out = folder.file("deep/er");
  const Vector<T> x = random_matrix<T>(777, 1, 22, 0, 3.0);
  const ProgramResult result = run_on(device, put_inputs(folder, {{"x", to_npy(x)}}), out);
  CHECK(result.err == "");
  check_prints(result,
               {"\"chapter\":\"01_online_softmax\"", "\"n\":777", out + "/softmax.npy"});
  // the type of the input, but the device computes in float32
  const bool in_double = std::is_same_v<T, double> && device == "cpu";
  check_weights(load_vector<T>(out, "softmax"), exact_softmax(x).p, in_double ? 1e-12 : 1e-5);
}

}  // namespace

TEST_CASE("cpu: the demonstration tells the worked example") {
  ProgramResult result = run({});
  CHECK(result.err == "");
  std::replace(result.out.begin(), result.out.end(), 'L', 'l');
  check_prints(result, {"1.1353", "1.5032", "1.5530", "4.4402", "0.6439", "0.2677", "0.803",
                        "1.996", "nan", "largest relative difference"});
}

TEST_CASE("cpu: files in and files out") {
  check_files<float>("cpu");
  check_files<double>("cpu");
}
TEST_CASE("device: files in and files out") {
  if (!have_device()) return;
  check_files<float>(device_kind());
  check_files<double>(device_kind());
}

TEST_CASE("cpu: m and l in prose and as JSON") {
  const TemporaryFolder folder;
  const auto run_with = [&](const Vector<float>& x, const Arguments& more = {}) {
    return run(put_inputs(folder, {{"x", to_npy(x)}}), more);
  };
  check_prints(run_with(vector({1, 1, 1, 1})), {"m = 1\nl = 4\n", "online softmax on cpu"});
  check_prints(run_with(vector({1, 1, 1, 1}), {"--json"}),
               "\"m\":1.0,\"l\":4.0,\"lse\":2.386294");
  check_prints(run_with(vector({}), {"--json"}), "\"m\":\"-inf\",\"l\":0.0,\"lse\":\"-inf\"");
  check_prints(run_with(vector({1, kNaN}), {"--json"}), "\"l\":\"nan\",\"lse\":\"nan\"");
  check_prints(run_with(vector({1, kNaN})), "nan");

  const std::string random = run(words("--n 9 --seed 1 --json")).out;
  CHECK(contains(random, "\"n\":9,"));
  CHECK(random == run(words("--n=9 --seed=1 --json")).out);
  CHECK(random != run(words("--n 9 --seed 2 --json")).out);
  CHECK(contains(run({"--help"}).out, "--width thread|block|grid"));
}

TEST_CASE("device: every width of the executable agrees and names what ran") {
  if (!have_device()) return;
  const std::string kind = device_kind();
  const TemporaryFolder folder;
  for (const std::string width : {"thread", "block", "grid"}) {
    CAPTURE(width);
    const std::string out = folder.file(width);
    const ProgramResult result =
        run({"--n", "3001", "--device", kind, "--width", width, "--out", out});
    check_prints(result, "on " + kind + " (" + device_name() + ", one " + width + ")");
    check_weights(weights_in(out),
                  exact_softmax(Vector<float>(random_matrix<float>(3001, 1, 0, 0))).p, 1e-5);
  }
  CHECK(contains(run({"--n", "5", "--device", kind, "--json"}).out, "\"width\":\"grid\""));
}

TEST_CASE("device: CUDA's own calls give the same weights") {
  if (simulated()) {
    CHECK_THROWS_WITH_AS(weights_raw({1.0f}, 1, 1),
                         "weights_raw: raw CUDA needs nvcc and a GPU", DeviceError);
    return;
  }
  if (!have_device()) return;
  for (const Index N : {0, 1, 255, 256, 257, 100000}) {
    CAPTURE(N);
    const Vector<float> x = random_vector(N, 23, 3.0);
    const Exact exact = exact_softmax(x);
    const float m = static_cast<float>(exact.m), l = static_cast<float>(exact.l);
    const std::vector<float> p =
        weights_raw({x.begin(), x.end()}, N == 0 ? 0 : m, N == 0 ? 1 : l);
    REQUIRE(p.size() == static_cast<std::size_t>(N));
    check_weights(vector(p), exact.p, 1e-5);
  }
}

TEST_CASE("device: the order of the threads does not matter") {
  if (!have_device()) return;
  if (!simulated()) {  // a GPU has an order of its own
    CHECK(run({"--n", "9", "--device", "cuda", "--thread-order", "forward"}).exit_code == 2);
    return;
  }
  const TemporaryFolder folder;
  for (const std::string width : {"block", "grid"}) {
    Vector<float> first;
    for (const std::string order : {"forward", "reverse", "random"}) {
      CAPTURE(order);
      const std::string out = folder.file(width + order);
      REQUIRE(run({"--n", "5003", "--device", device_kind(), "--width", width, "--thread-order",
                   order, "--out", out})
                  .exit_code == 0);
      const Vector<float> p = weights_in(out);
      if (first.size() == 0) first = p;
      CHECK(same_bits(p, first));
    }
  }
}

TEST_CASE("cpu: bad input is one line and exit code 2") {
  const TemporaryFolder folder;
  const std::string file = folder.file("x.npy"), good = folder.file("good.npy");
  write_npy(good, to_npy(vector({1, 2})));
  write_npy(file, to_npy(random_matrix<float>(2, 2, 0, 0)));
  check_usage_error({"--x", file}, {file, "[N]", "[2, 2]"});
  write_npy(file, {{}, std::vector<float>{1}});
  check_usage_error({"--x", file}, {file, "[N]", "[]"});
  write_npy(file, {{2}, std::vector<std::int32_t>{1, 2}});
  check_usage_error({"--x", file}, {file, "i4", "f4 or f8"});
  check_usage_error({"--x", folder.file("none.npy")}, {"--x", "none.npy"});
  check_usage_error({"--x", folder.path().string()}, {"--x", folder.path().string()});

  check_usage_error({"--x", good, "--device", other_device()}, {other_device()});
  check_usage_error({"--x", good, "--device", "gpu"}, {"--device", "gpu"});
  check_usage_error({"--x", good, "--width", "block"}, {"--width", "--device"});
  check_usage_error({"--x", good, "--width", "warp", "--device", "cpu"}, {"--width", "warp"});
  check_usage_error({"--x", good, "--n", "5"}, {"--x", "--n"});
  check_usage_error({"--n", "nan"}, {"--n", "nan"});
  check_usage_error({"--n", "1e400"}, {"--n", "1e400"});
  check_usage_error({"--n", "-1"}, {"--n", "-1"});
  check_usage_error({"--n"}, {"--n"});
  check_usage_error({"--seed", "nan"}, {"--seed"});
  check_usage_error({"--scale", "1"}, {"--scale"});
  check_usage_error({"x.npy"}, {"x.npy"});
  check_usage_error({"--x", good, "--out", good}, {good});
}

TEST_CASE("device: bad input is one line and exit code 2") {
  if (!have_device()) return;
  check_usage_error({"--n", "200000", "--device", device_kind(), "--width", "thread"},
                    {"200000", "131072"});
  check_usage_error({"--n", "5", "--device", device_kind(), "--width", "warp"}, {"--width"});
}

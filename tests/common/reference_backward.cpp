// common/reference, the oracle: dropout, and the gradients of one head. Against PyTorch's
// autograd in tests/golden, against finite differences, against reports of real bugs worked out
// by hand, and at the edges of the numerical contract. Names as in reference.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/reference/attention.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/values.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = kInf<double>;
constexpr Budget kPrinted{1e-6, 0};  // expected values that a report prints with six decimals
constexpr Budget kExact{0, 0};

using Mask = Matrix<std::uint8_t>;

Mask mask_row(const std::vector<std::uint8_t>& kept) {
  return Eigen::Map<const Mask>(kept.data(), 1, static_cast<Index>(kept.size()));
}

// 1 with probability 1 - p.
Mask random_mask(Index rows, Index cols, double p, std::uint64_t seed) {
  const Matrix<double> normal = random_matrix<double>(rows, cols, seed, 9);
  Mask mask(rows, cols);
  for (Index i = 0; i < mask.size(); ++i) {
    const double uniform = 0.5 * std::erfc(-normal.data()[i] / std::sqrt(2.0));
    mask.data()[i] = uniform >= p;
  }
  return mask;
}

struct Size {
  Index Nq, Nk, d;
};

struct Problem {
  Matrix<double> Q, K, V, dO;
  Vector<double> dLSE;
};

Problem random_problem(Index Nq, Index Nk, Index d, std::uint64_t seed) {
  return {random_matrix<double>(Nq, d, seed, 0), random_matrix<double>(Nk, d, seed, 1),
          random_matrix<double>(Nk, d, seed, 2), random_matrix<double>(Nq, d, seed, 3),
          random_matrix<double>(Nq, 1, seed, 4)};
}

ReferenceGradients backward(const Problem& x, const ReferenceOptions& options = {}) {
  return reference_backward(x.Q, x.K, x.V, x.dO, options, &x.dLSE);
}

void check_gradients(const ReferenceGradients& actual, const ReferenceGradients& expected,
                     Budget budget = kFloat64) {
  const auto check = [&](const char* what, auto gradient) {
    CAPTURE(what);
    check_close(actual.*gradient, expected.*gradient, budget);
  };
  check("dQ", &ReferenceGradients::dQ);
  check("dK", &ReferenceGradients::dK);
  check("dV", &ReferenceGradients::dV);
}

void check_same(const ReferenceGradients& a, const ReferenceGradients& b) {
  CHECK(same_bits(a.dQ, b.dQ));
  CHECK(same_bits(a.dK, b.dK));
  CHECK(same_bits(a.dV, b.dV));
}

// ---- finite differences ---------------------------------------------------------------------

// What dO and dLSE are the gradients of; a row that sees no key has no part in it.
double loss(const Problem& x, const ReferenceOptions& options) {
  const ReferenceResult result = reference_attention(x.Q, x.K, x.V, options);
  double sum = 0;
  for (Index i = 0; i < x.Q.rows(); ++i) {
    if (result.l(i) == 0) continue;
    for (Index c = 0; c < x.Q.cols(); ++c) sum += x.dO(i, c) * result.O(i, c);
    sum += x.dLSE(i) * result.LSE(i);
  }
  return sum;
}

Matrix<double> difference(const Problem& x, Matrix<double> Problem::*input,
                          const ReferenceOptions& options) {
  constexpr double kStep = 1e-5;  // error of the step about 1e-10, of rounding about 1e-11
  Matrix<double> gradient((x.*input).rows(), (x.*input).cols());
  for (Index i = 0; i < gradient.size(); ++i) {
    Problem up = x, down = x;
    (up.*input).data()[i] += kStep;
    (down.*input).data()[i] -= kStep;
    gradient.data()[i] = (loss(up, options) - loss(down, options)) / (2 * kStep);
  }
  return gradient;
}

void check_differences(const Problem& x, const ReferenceOptions& options) {
  const ReferenceGradients expected{difference(x, &Problem::Q, options),
                                    difference(x, &Problem::K, options),
                                    difference(x, &Problem::V, options)};
  check_gradients(backward(x, options), expected, {1e-8, 1e-8});
}

}  // namespace

TEST_CASE("cpu: reference backward equals the gradients of PyTorch in float64") {
  const std::vector<GradientGolden> all = gradient_goldens();
  REQUIRE(all.size() == 36);  // nine cases, causal or not, with dLSE or not
  for (const GradientGolden& g : all) {
    CAPTURE(g.name);
    const ReferenceOptions options{.scale = g.scale, .causal = g.causal};
    const Matrix<double> Q = g.Q.cast<double>(), K = g.K.cast<double>(), V = g.V.cast<double>(),
                         dO = g.dO.cast<double>();
    Vector<double> dLSE;
    if (g.dLSE) dLSE = g.dLSE->cast<double>();
    check_gradients(reference_backward(Q, K, V, dO, options, g.dLSE ? &dLSE : nullptr),
                    {g.dQ, g.dK, g.dV});
  }
}

TEST_CASE("cpu: reference backward equals finite differences") {
  for (const Size size : {Size{1, 1, 1}, {3, 5, 4}, {5, 3, 2}, {6, 6, 3}}) {
    for (const bool causal : {false, true}) {
      for (const std::optional<double> scale : {std::optional<double>(), {-0.7}, {0.0}}) {
        CAPTURE(size.Nq);
        CAPTURE(causal);
        CAPTURE(scale.value_or(1));
        check_differences(random_problem(size.Nq, size.Nk, size.d, 1),
                          {.scale = scale, .causal = causal});
      }
    }
  }
}

TEST_CASE("cpu: reference K11 finite differences with a fixed mask (xformers 755)") {
  for (const Size size : {Size{5, 5, 3}, {4, 7, 3}, {7, 4, 3}}) {
    for (const bool causal : {false, true}) {
      for (const double p : {0.0, 0.3, 0.9}) {
        CAPTURE(size.Nq);
        CAPTURE(causal);
        CAPTURE(p);
        const Mask mask = random_mask(size.Nq, size.Nk, p, 2);
        check_differences(random_problem(size.Nq, size.Nk, size.d, 2),
                          {.causal = causal, .dropout = p, .mask = &mask});
      }
    }
  }
}

// ---- by hand --------------------------------------------------------------------------------

TEST_CASE("cpu: reference backward two equal scores by hand") {
  // P = (1/2, 1/2), O = D = 2, dP = (1, 3), dS = (-1/2, 1/2)
  const Problem x{doubles({1}), doubles({3, 3}), doubles({1, 3}), doubles({1}), doubles({0})};
  check_gradients(backward(x, {.scale = 2.0}),
                  {doubles({0}), doubles({-1, 1}), doubles({0.5, 0.5})}, kExact);

  // dLSE adds its P-weighted mean: dS = (-1/2, 1/2) + (1/2, 1/2)
  Problem y = x;
  y.dLSE(0) = 1;
  check_gradients(backward(y, {.scale = 2.0}),
                  {doubles({6}), doubles({0, 2}), doubles({0.5, 0.5})}, kExact);
  check_same(reference_backward(x.Q, x.K, x.V, x.dO), backward(x));  // no dLSE is a dLSE of 0
}

TEST_CASE("cpu: reference K09 many more queries than keys (flash-attention 443)") {
  const Problem x{doubles({1, 1, 1, 1}), doubles({1, 2}), doubles({1, 3}),
                  doubles({1, 1, 1, 1}), Vector<double>::Zero(4)};
  check_gradients(backward(x, {.scale = 1.0, .causal = true}),
                  {doubles({0, 0, 0, 0.393224}), doubles({-0.393224, 0.393224}),
                   doubles({1.268941, 0.731059})},
                  kPrinted);
}

TEST_CASE("cpu: reference K09 exact where float32 LSE cannot be (pytorch 125674)") {
  const Problem x{doubles({1}), doubles({16777216, 16777216}), doubles({0, 1}), doubles({1}),
                  doubles({0})};
  check_gradients(backward(x, {.scale = 1.0}),
                  {doubles({0}), doubles({-0.25, 0.25}), doubles({0.5, 0.5})}, kExact);
}

TEST_CASE("cpu: reference K09 dP is dropped and P in dS is not (nki-samples 81)") {
  const Mask mask = mask_row({1, 0, 1});
  const Problem x{doubles({1}), doubles({0, 1, 2}), doubles({1, 2, 4}), doubles({1}),
                  doubles({0})};
  const ReferenceOptions options{.scale = 1.0, .dropout = 0.5, .mask = &mask};
  check_close(reference_attention(x.Q, x.K, x.V, options).O, doubles({5.501989}), kPrinted);
  const ReferenceGradients gradients = backward(x, options);
  check_gradients(gradients,
                  {doubles({1.977065}), doubles({-0.315286, -1.346493, 1.661779}),
                   doubles({0.180061, 0, 1.330482})},
                  kPrinted);
  CHECK(gradients.dV(1, 0) == 0.0);
}

// ---- dropout --------------------------------------------------------------------------------

TEST_CASE("cpu: reference K11 a dropped row is not an empty one (nki-samples 80)") {
  const Mask none = mask_row({0}), some = mask_row({1, 0, 1});
  const ReferenceResult dropped = reference_attention(
      doubles({1}), doubles({7}), doubles({3}), {.scale = 1.0, .dropout = 0.5, .mask = &none});
  check_close(dropped.O, doubles({0}), kExact);
  check_close(dropped.LSE, doubles({7}), kExact);
  check_close(dropped.l, doubles({1}), kExact);

  // Its gradients are 0 but for that of LSE.
  const Problem x{doubles({2}), doubles({7}), doubles({3}), doubles({5}), doubles({11})};
  check_gradients(backward(x, {.scale = 1.0, .dropout = 0.5, .mask = &none}),
                  {doubles({77}), doubles({22}), doubles({0})}, kExact);

  const ReferenceResult result =
      reference_attention(doubles({1}), doubles({0, 1, 2}), doubles({1, 2, 4}),
                          {.scale = 1.0, .dropout = 0.5, .mask = &some});
  check_close(result.O, doubles({5.501989}), kPrinted);
  check_close(result.LSE, doubles({2.407606}), kPrinted);
}

TEST_CASE(
    "cpu: reference K11 kept weights are scaled by 1/(1-p) (apex 816 and pytorch 33360)") {
  const Mask kept = mask_row({1}), dropped = mask_row({0});
  const Problem x{doubles({1}), doubles({1}), doubles({3}), doubles({1}), doubles({0})};
  const ReferenceOptions quarter{.dropout = 0.25, .mask = &kept};
  check_close(reference_attention(x.Q, x.K, x.V, quarter).O, doubles({4}), kFloat64);
  check_gradients(backward(x, quarter), {doubles({0}), doubles({0}), doubles({4.0 / 3})});

  const auto O = [&](const Mask& mask) {
    return reference_attention(x.Q, x.K, x.V, {.dropout = 0.5, .mask = &mask}).O(0, 0);
  };
  CHECK(O(kept) == 6.0);
  CHECK(O(dropped) == 0.0);
}

TEST_CASE("cpu: reference dropout leaves the statistics and P alone") {
  const Problem x = random_problem(6, 9, 4, 3);
  const Mask mask = random_mask(6, 9, 0.4, 3);
  for (const bool causal : {false, true}) {
    const ReferenceResult plain =
        reference_attention(x.Q, x.K, x.V, {.causal = causal, .keep_P = true});
    const ReferenceResult result = reference_attention(
        x.Q, x.K, x.V, {.causal = causal, .keep_P = true, .dropout = 0.4, .mask = &mask});
    CHECK(same_bits(result.m, plain.m));
    CHECK(same_bits(result.l, plain.l));
    CHECK(same_bits(result.LSE, plain.LSE));
    CHECK(same_bits(result.P, plain.P));
    Matrix<double> O = Matrix<double>::Zero(6, 4);
    for (Index i = 0; i < 6; ++i) {
      for (Index j = 0; j < 9; ++j) {
        if (mask(i, j) != 0) O.row(i) += plain.P(i, j) / (1 - 0.4) * x.V.row(j);
      }
    }
    check_close(result.O, O, kFloat64);
  }
}

TEST_CASE("cpu: reference without dropout a mask of ones changes no bit") {
  const Problem x = random_problem(5, 7, 3, 4);
  const Mask ones = Mask::Ones(5, 7), other = Mask::Constant(5, 7, 255);
  for (const Mask* mask : {&ones, &other}) {  // all but 0 is kept
    check_same(backward(x, {.mask = mask}), backward(x));
    CHECK(same_bits(reference_attention(x.Q, x.K, x.V, {.mask = mask}).O,
                    reference_attention(x.Q, x.K, x.V).O));
  }
  // A mask counts with p = 0, too.
  const Mask zeros = Mask::Zero(5, 7);
  check_close(reference_attention(x.Q, x.K, x.V, {.mask = &zeros}).O,
              Matrix<double>::Zero(5, 3).eval(), kExact);
}

TEST_CASE("cpu: reference the average over all masks is the result without dropout") {
  const Problem x = random_problem(1, 4, 3, 5);
  const double p = 0.3;
  Matrix<double> O = Matrix<double>::Zero(1, 3);
  ReferenceGradients mean{O, Matrix<double>::Zero(4, 3), Matrix<double>::Zero(4, 3)};
  for (int bits = 0; bits < 16; ++bits) {
    Mask mask(1, 4);
    double probability = 1;
    for (Index j = 0; j < 4; ++j) {
      mask(0, j) = (bits >> j) & 1;
      probability *= mask(0, j) ? 1 - p : p;
    }
    const ReferenceOptions options{.dropout = p, .mask = &mask};
    const ReferenceGradients gradients = backward(x, options);
    O += probability * reference_attention(x.Q, x.K, x.V, options).O;
    mean.dQ += probability * gradients.dQ;
    mean.dK += probability * gradients.dK;
    mean.dV += probability * gradients.dV;
  }
  check_close(O, reference_attention(x.Q, x.K, x.V).O, kFloat64);
  check_gradients(mean, backward(x));
}

TEST_CASE("cpu: reference a dropped key is visible: NaN there still counts") {
  const Mask mask = mask_row({1, 0});
  const ReferenceOptions options{.scale = 1.0, .dropout = 0.5, .mask = &mask};
  const auto O = [&](double K, double V) {
    return reference_attention(doubles({1}), doubles({0, K}), doubles({1, V}), options).O;
  };
  CHECK(std::isnan(O(kNaN, 1)(0, 0)));
  CHECK(std::isnan(O(0, kNaN)(0, 0)));

  // All dropped, and the score is NaN: the row is NaN, not 0.
  const Mask none = mask_row({0});
  CHECK(std::isnan(reference_attention(doubles({1}), doubles({kNaN}), doubles({1}),
                                       {.dropout = 0.5, .mask = &none})
                       .O(0, 0)));
}

TEST_CASE("cpu: reference rows that see no key are empty with dropout too") {
  const Mask mask = Mask::Ones(3, 1);
  const ReferenceOptions options{.scale = 1.0, .causal = true, .dropout = 0.5, .mask = &mask};
  const ReferenceResult result =
      reference_attention(doubles({1, 1, 1}), doubles({1}), doubles({5}), options);
  check_close(result.O, doubles({0, 0, 10}), kExact);
  check_close(result.LSE, doubles({-kInfinity, -kInfinity, 1}), kExact);
}

// ---- rows that see no key -------------------------------------------------------------------

TEST_CASE(
    "cpu: reference K09 rows that see no key add nothing whatever they hold (tilelang 2461)") {
  const Problem clean = random_problem(5, 3, 2, 6);  // causal: rows 0 and 1 see nothing
  const ReferenceOptions options{.causal = true};
  const ReferenceGradients expected = backward(clean, options);
  check_close(expected.dQ.topRows(2), Matrix<double>::Zero(2, 2).eval(), kExact);

  // They are the gradients of the other rows alone.
  const Problem rest{clean.Q.bottomRows(3), clean.K, clean.V, clean.dO.bottomRows(3),
                     clean.dLSE.tail(3)};
  const ReferenceGradients alone = backward(rest, options);
  CHECK(same_bits(expected.dK, alone.dK));
  CHECK(same_bits(expected.dV, alone.dV));
  CHECK(same_bits(expected.dQ.bottomRows(3), alone.dQ));

  for (const double filler : {kNaN, kInfinity, -kInfinity}) {
    CAPTURE(filler);
    Problem x = clean;
    x.Q.topRows(2).setConstant(filler);
    x.dO.topRows(2).setConstant(filler);
    x.dLSE.head(2).setConstant(filler);
    check_same(backward(x, options), expected);
  }
}

TEST_CASE("cpu: reference backward a row of scores -inf alone counts as seeing no key") {
  const Problem x{doubles({1}), doubles({-kInfinity, -kInfinity}), doubles({kNaN, 3}),
                  doubles({kNaN}), doubles({kNaN})};
  check_gradients(backward(x, {.scale = 1.0}), {doubles({0}), doubles({0, 0}), doubles({0, 0})},
                  kExact);
}

// ---- NaN and infinity -----------------------------------------------------------------------

TEST_CASE("cpu: reference backward NaN goes where the contract says") {
  // Causal and square: row i sees keys 0 to i. One NaN at row or key 1, channel 0.
  const Problem clean = random_problem(3, 3, 2, 7);
  const ReferenceOptions options{.causal = true};
  const ReferenceGradients base = backward(clean, options);

  // The rows of dQ and dK, and of channels 0 and 1 of dV, that must be NaN.
  using Rows = std::set<Index>;
  const auto check_nan = [&](const Problem& x, const Rows& dQ, const Rows& dK, const Rows& dV0,
                             const Rows& dV1) {
    const ReferenceGradients found = backward(x, options);
    for (const Index i : {0, 1, 2}) {
      CAPTURE(i);
      CHECK(found.dQ.row(i).hasNaN() == dQ.contains(i));
      CHECK(found.dK.row(i).hasNaN() == dK.contains(i));
      CHECK(std::isnan(found.dV(i, 0)) == dV0.contains(i));
      CHECK(std::isnan(found.dV(i, 1)) == dV1.contains(i));
    }
    CHECK(same_bits(found.dQ.row(0), base.dQ.row(0)));  // row 0 sees nothing of it
  };

  Problem x = clean;
  SUBCASE("dO") {
    x.dO(1, 0) = kNaN;
    check_nan(x, {1}, {0, 1}, {0, 1}, {});
  }
  SUBCASE("dLSE") {
    x.dLSE(1) = kNaN;
    check_nan(x, {1}, {0, 1}, {}, {});
    CHECK(same_bits(backward(x, options).dV, base.dV));
  }
  SUBCASE("Q") {
    x.Q(1, 0) = kNaN;
    check_nan(x, {1}, {0, 1}, {0, 1}, {0, 1});
  }
  SUBCASE("K") {
    x.K(1, 0) = kNaN;
    check_nan(x, {1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2});
  }
  SUBCASE("V") {
    x.V(1, 0) = kNaN;
    check_nan(x, {1, 2}, {0, 1, 2}, {}, {});
    CHECK(same_bits(backward(x, options).dV, base.dV));
  }
}

TEST_CASE("cpu: reference K13 unused rows of a buffer never enter the gradients") {
  const Problem x = random_problem(4, 6, 3, 8);
  for (const double filler : {kNaN, kInfinity}) {
    Matrix<double> K = Matrix<double>::Constant(9, 3, filler), V = K;
    K.topRows(6) = x.K;
    V.topRows(6) = x.V;
    check_same(reference_backward(x.Q, K.topRows(6), V.topRows(6), x.dO, {}, &x.dLSE),
               backward(x));
  }
}

TEST_CASE("cpu: reference backward a weight of 0 does not hide an infinite key") {
  const Problem x{doubles({1}), doubles({-kInfinity, 2}), doubles({3, 4}), doubles({1}),
                  doubles({0})};
  const ReferenceGradients gradients = backward(x, {.scale = 1.0});
  CHECK(std::isnan(gradients.dQ(0, 0)));
  check_close(gradients.dK, doubles({0, 0}), kExact);
  check_close(gradients.dV, doubles({0, 1}), kExact);
}

// ---- sizes, properties, interface -----------------------------------------------------------

TEST_CASE("cpu: reference backward without queries or keys gives zeros") {
  for (const bool causal : {false, true}) {
    const Problem no_keys = random_problem(3, 0, 2, 9), no_queries = random_problem(0, 3, 2, 9);
    const ReferenceGradients a = backward(no_keys, {.causal = causal}),
                             b = backward(no_queries, {.causal = causal});
    check_gradients(a, {Matrix<double>::Zero(3, 2), Matrix<double>(0, 2), Matrix<double>(0, 2)},
                    kExact);
    check_gradients(
        b, {Matrix<double>(0, 2), Matrix<double>::Zero(3, 2), Matrix<double>::Zero(3, 2)},
        kExact);
  }
}

TEST_CASE("cpu: reference backward with scale 0 only V has a gradient") {
  const Problem x = random_problem(2, 4, 3, 10);
  const ReferenceGradients gradients = backward(x, {.scale = 0.0});
  const Matrix<double> mean = x.dO.colwise().sum() / 4;
  check_gradients(gradients, {Matrix<double>::Zero(2, 3), Matrix<double>::Zero(4, 3),
                              mean.replicate(4, 1)});
}

TEST_CASE("cpu: reference backward a number added to all scores moves dQ by dLSE alone") {
  // Channel 2 of every key holds 40: each row's dS sums to its dLSE, so dQ there is 40 dLSE.
  Problem x = random_problem(4, 6, 3, 11);
  const Mask mask = random_mask(4, 6, 0.5, 11);
  for (const double p : {0.0, 0.5}) {
    ReferenceOptions options{.scale = 1.0, .dropout = p};
    if (p > 0) options.mask = &mask;
    x.K.col(2).setZero();
    const ReferenceGradients expected = backward(x, options);
    x.K.col(2).setConstant(40);
    const ReferenceGradients shifted = backward(x, options);
    check_close(shifted.dQ.col(2).eval(), (40 * x.dLSE).eval(), kFloat64);
    check_close(shifted.dQ.leftCols(2).eval(), expected.dQ.leftCols(2).eval(), kFloat64);
    check_close(shifted.dK, expected.dK, kFloat64);
    check_close(shifted.dV, expected.dV, kFloat64);
  }
}

TEST_CASE("cpu: reference backward equal values leave nothing to learn about scores") {
  Problem x = random_problem(5, 7, 3, 12);
  x.V.setConstant(2);
  x.dLSE.setZero();
  const ReferenceGradients gradients = backward(x);
  check_close(gradients.dQ, Matrix<double>::Zero(5, 3).eval(), kFloat64);
  check_close(gradients.dK, Matrix<double>::Zero(7, 3).eval(), kFloat64);
}

TEST_CASE("cpu: reference backward keys and values in another order") {
  const Problem x = random_problem(5, 7, 3, 13);
  Problem y = x;
  y.K = x.K.colwise().reverse();
  y.V = x.V.colwise().reverse();
  const ReferenceGradients a = backward(x), b = backward(y);
  check_gradients(b, {a.dQ, a.dK.colwise().reverse(), a.dV.colwise().reverse()});
}

TEST_CASE("cpu: reference backward blocks of larger matrices give the same result") {
  const Matrix<double> big = random_matrix<double>(30, 11, 14, 0);
  const Problem x{big.block(1, 2, 3, 5), big.block(4, 3, 7, 5), big.block(11, 1, 7, 5),
                  big.block(20, 4, 3, 5), Vector<double>::Zero(3)};
  check_same(reference_backward(big.block(1, 2, 3, 5), big.block(4, 3, 7, 5),
                                big.block(11, 1, 7, 5), big.block(20, 4, 3, 5)),
             backward(x));
}

TEST_CASE("cpu: reference backward and dropout argument errors") {
  const Problem x = random_problem(2, 3, 4, 15);
  const auto message = [&](const ReferenceOptions& options, const Matrix<double>& dO,
                           const Vector<double>& dLSE) {
    return message_of([&] { reference_backward(x.Q, x.K, x.V, dO, options, &dLSE); });
  };
  CHECK(message({}, x.dO, x.dLSE) == "accepted");
  CHECK(message({}, x.K, x.dLSE) == "dO must be (Nq, d) = (2, 4), found (3, 4)");
  CHECK(message({}, x.dO, Vector<double>(3)) == "dLSE must be (Nq, 1) = (2, 1), found (3, 1)");

  const Mask mask = Mask::Ones(2, 3), wrong = Mask::Ones(3, 2);
  for (const double p : {0.0, 0.5}) {
    const ReferenceOptions options{.dropout = p, .mask = &wrong};
    CHECK(message(options, x.dO, x.dLSE) == "the mask must be (Nq, Nk) = (2, 3), found (3, 2)");
    CHECK_THROWS_AS(reference_attention(x.Q, x.K, x.V, options), std::invalid_argument);
  }
  CHECK(message({.dropout = 0.5}, x.dO, x.dLSE) == "dropout above 0 needs a mask");
  CHECK_THROWS_AS(reference_attention(x.Q, x.K, x.V, {.dropout = 0.5}), std::invalid_argument);
  CHECK(message({.dropout = 1, .mask = &mask}, x.dO, x.dLSE) ==
        "dropout must be at least 0 and below 1, found 1.000000");
  for (const double p : {-0.1, 2.0, kNaN, kInfinity}) {
    CAPTURE(p);
    CHECK(message({.dropout = p, .mask = &mask}, x.dO, x.dLSE) != "accepted");
  }
}

// common/reference for batches of heads: against PyTorch in tests/golden, against the oracle of
// one head, reports of real bugs, edges and errors. Names as in reference.cpp.
#include "common/reference/heads.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/tensor/random_heads.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/view.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/strided_heads.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Mask = Matrix<std::uint8_t>;

struct Problem {
  HeadsArray<double> Q, K, V, dO;
  Matrix<double> dLSE;
};

Problem random_problem(Index B, Index H, Index Hkv, Index Nq, Index Nk, Index d) {
  return {random_heads<double>(B, H, Nq, d, 0, 0), random_heads<double>(B, Hkv, Nk, d, 0, 1),
          random_heads<double>(B, Hkv, Nk, d, 0, 2), random_heads<double>(B, H, Nq, d, 1, 0),
          random_matrix<double>(B * H, Nq, 2, 0)};
}

ReferenceHeadsResult forward(const Problem& x, const ReferenceHeadsOptions& options = {}) {
  return reference_attention_heads(x.Q.view(), x.K.view(), x.V.view(), options);
}

ReferenceHeadsGradients backward(const Problem& x, const ReferenceHeadsOptions& options = {}) {
  return reference_backward_heads(x.Q.view(), x.K.view(), x.V.view(), x.dO.view(), options,
                                  &x.dLSE);
}

void check_heads(const HeadsArray<double>& actual, const HeadsArray<double>& expected,
                 Budget budget = kFloat64) {
  REQUIRE(actual.B() == expected.B());
  REQUIRE(actual.H() == expected.H());
  REQUIRE(actual.N() == expected.N());
  check_close(actual, expected, budget);
}

void check_golden(const HeadsGolden& g) {
  CAPTURE(g.name);
  Problem x{cast_heads<double>(g.Q), cast_heads<double>(g.K), cast_heads<double>(g.V),
            cast_heads<double>(g.dO), Matrix<double>::Zero(g.LSE.rows(), g.LSE.cols())};
  if (g.dLSE) x.dLSE = g.dLSE->cast<double>();
  const ReferenceHeadsOptions options{
      .scale = g.scale, .causal = g.causal, .dropout = g.dropout, .masks = g.masks};
  const ReferenceHeadsResult result = forward(x, options);
  check_heads(result.O, g.O);
  check_close(result.LSE, g.LSE, kFloat64);
  const ReferenceHeadsGradients gradients = backward(x, options);
  check_heads(gradients.dQ, g.dQ);
  check_heads(gradients.dK, g.dK);
  check_heads(gradients.dV, g.dV);
}

}  // namespace

TEST_CASE("cpu: reference heads equals PyTorch on shared key and value heads") {
  const std::vector<HeadsGolden> all = heads_goldens("gqa");
  REQUIRE(all.size() == 8);  // four cases, causal or not
  for (const HeadsGolden& g : all) check_golden(g);
}

TEST_CASE("cpu: reference heads equals PyTorch on Q K V of a causal decoder") {
  const std::vector<HeadsGolden> all = heads_goldens("decoder");
  REQUIRE(all.size() == 2);  // two layers, causal alone
  for (const HeadsGolden& g : all) check_golden(g);
}

TEST_CASE("cpu: reference heads equals PyTorch with dropout and a given mask") {
  const std::vector<HeadsGolden> all = dropout_goldens();
  REQUIRE(all.size() == 6);  // three cases, causal or not
  for (const HeadsGolden& g : all) {
    REQUIRE(g.masks.size() == static_cast<std::size_t>(g.LSE.rows()));
    check_golden(g);
  }
}

TEST_CASE("cpu: reference heads is the oracle of one head for every head") {
  for (const Index Hkv : {1, 2, 3, 6}) {
    CAPTURE(Hkv);
    const Index B = 2, H = 6;
    const Problem x = random_problem(B, H, Hkv, 5, 4, 3);
    ReferenceHeadsOptions options{.scale = -0.4, .causal = true, .dropout = 0.25};
    for (Index i = 0; i < B * H; ++i) {
      options.masks.push_back(
          (random_matrix<double>(5, 4, static_cast<std::uint64_t>(i), 5).array() > -0.6)
              .cast<std::uint8_t>());
    }
    const ReferenceHeadsResult result = forward(x, options);
    const ReferenceHeadsGradients gradients = backward(x, options);

    HeadsArray<double> dK(B, Hkv, 4, 3), dV(B, Hkv, 4, 3);
    for (Index b = 0; b < B; ++b) {
      for (Index h = 0; h < H; ++h) {
        CAPTURE(b);
        CAPTURE(h);
        const Index row = b * H + h, kv = h * Hkv / H;
        const Vector<double> dLSE = x.dLSE.row(row).transpose();
        const ReferenceOptions one{.scale = -0.4,
                                   .causal = true,
                                   .dropout = 0.25,
                                   .mask = &options.masks[static_cast<std::size_t>(row)]};
        const ReferenceResult head =
            reference_attention(x.Q.head(b, h), x.K.head(b, kv), x.V.head(b, kv), one);
        CHECK(same_bits(result.O.head(b, h), head.O));
        CHECK(same_bits(result.LSE.row(row).transpose(), head.LSE));
        const ReferenceGradients g = reference_backward(
            x.Q.head(b, h), x.K.head(b, kv), x.V.head(b, kv), x.dO.head(b, h), one, &dLSE);
        CHECK(same_bits(gradients.dQ.head(b, h), g.dQ));
        dK.head(b, kv) += g.dK;
        dV.head(b, kv) += g.dV;
      }
    }
    CHECK(same_bits(gradients.dK, dK));
    CHECK(same_bits(gradients.dV, dV));
  }
}

TEST_CASE("cpu: reference K09 dK and dV are summed over the group (levanter 449)") {
  const auto heads = [](Index H, const std::vector<double>& values) {
    HeadsArray<double> x(1, H, static_cast<Index>(values.size()) / H, 1);
    x.elements() = values;
    return x;
  };
  const Problem x{heads(2, {1, 2}), heads(1, {0, 1}), heads(1, {0, 1}), heads(2, {1, 1}),
                  Matrix<double>::Zero(2, 1)};
  const ReferenceHeadsGradients gradients = backward(x, {.scale = 1.0});
  constexpr Budget kPrinted{1e-6, 0};
  check_heads(gradients.dQ, heads(2, {0.196612, 0.104994}), kPrinted);
  check_heads(gradients.dK, heads(1, {-0.406599, 0.406599}), kPrinted);
  check_heads(gradients.dV, heads(1, {0.388144, 1.611856}), kPrinted);
}

TEST_CASE("cpu: reference K09 heads share keys in order (native-sparse-attention-triton 27)") {
  // The same as with every key/value head repeated H / Hkv times.
  for (const Index Hkv : {2, 3}) {
    CAPTURE(Hkv);
    const Problem x = random_problem(2, 6, Hkv, 4, 5, 3);
    Problem repeated = x;
    repeated.K = repeated.V = HeadsArray<double>(2, 6, 5, 3);
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 6; ++h) {
        repeated.K.head(b, h) = x.K.head(b, h / (6 / Hkv));
        repeated.V.head(b, h) = x.V.head(b, h / (6 / Hkv));
      }
    }
    check_heads(forward(x).O, forward(repeated).O, {0, 0});
    check_heads(backward(x).dQ, backward(repeated).dQ, {0, 0});
    const ReferenceHeadsGradients all = backward(repeated), summed = backward(x);
    for (Index b = 0; b < 2; ++b) {
      for (Index kv = 0; kv < Hkv; ++kv) {
        Matrix<double> dK = Matrix<double>::Zero(5, 3), dV = dK;
        for (Index h = kv * (6 / Hkv); h < (kv + 1) * (6 / Hkv); ++h) {
          dK += all.dK.head(b, h);
          dV += all.dV.head(b, h);
        }
        check_close(summed.dK.head(b, kv), dK, kFloat64);
        check_close(summed.dV.head(b, kv), dV, kFloat64);
      }
    }
  }
}

TEST_CASE("cpu: reference heads reads any strides") {
  const Problem x = random_problem(2, 4, 2, 3, 5, 2);
  for (const Order order : {Order::bnhd, Order::gaps}) {
    const StridedHeads Q(x.Q, order), K(x.K, order), V(x.V, order), dO(x.dO, order);
    const ReferenceHeadsGradients gradients =
        reference_backward_heads(Q.view(), K.view(), V.view(), dO.view(), {}, &x.dLSE);
    check_heads(reference_attention_heads(Q.view(), K.view(), V.view()).O, forward(x).O,
                {0, 0});
    check_heads(gradients.dQ, backward(x).dQ, {0, 0});
    check_heads(gradients.dK, backward(x).dK, {0, 0});
    check_heads(gradients.dV, backward(x).dV, {0, 0});
  }
}

TEST_CASE("cpu: reference heads NaN stays in its head and its group") {
  const Problem clean = random_problem(2, 4, 2, 3, 3, 2);
  Problem x = clean;
  x.K.head(1, 0).setConstant(kNaN);  // query heads 0 and 1 of batch 1
  const ReferenceHeadsResult result = forward(x), expected = forward(clean);
  const ReferenceHeadsGradients gradients = backward(x), gradients_clean = backward(clean);
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 4; ++h) {
      CAPTURE(b);
      CAPTURE(h);
      const bool nan = b == 1 && h < 2;
      CHECK(same_bits(result.O.head(b, h), expected.O.head(b, h)) == !nan);
      CHECK(result.LSE.row(b * 4 + h).array().isNaN().all() == nan);
      CHECK(same_bits(gradients.dQ.head(b, h), gradients_clean.dQ.head(b, h)) == !nan);
    }
    for (Index kv = 0; kv < 2; ++kv) {
      const bool nan = b == 1 && kv == 0;
      CHECK(same_bits(gradients.dK.head(b, kv), gradients_clean.dK.head(b, kv)) == !nan);
      CHECK(same_bits(gradients.dV.head(b, kv), gradients_clean.dV.head(b, kv)) == !nan);
    }
  }
}

TEST_CASE("cpu: reference heads sizes of 0") {
  const auto sizes = [](Index B, Index H, Index Hkv, Index Nq, Index Nk) {
    const Problem x = random_problem(B, H, Hkv, Nq, Nk, 2);
    const ReferenceHeadsResult result = forward(x, {.causal = true});
    CHECK(result.O.elements() == std::vector<double>(static_cast<std::size_t>(B * H * Nq * 2)));
    CHECK(result.LSE.rows() == B * H);
    CHECK(result.LSE.cols() == Nq);
    CHECK((result.LSE.array() == -kInf<double>).all());
    const ReferenceHeadsGradients gradients = backward(x);
    CHECK(gradients.dQ.elements().size() == result.O.elements().size());
    CHECK(gradients.dK.elements() ==
          std::vector<double>(static_cast<std::size_t>(B * Hkv * Nk * 2)));
    CHECK(gradients.dV.elements() == gradients.dK.elements());
  };
  sizes(0, 4, 2, 3, 5);
  sizes(2, 0, 0, 3, 5);
  sizes(2, 0, 2, 3, 5);
  sizes(2, 4, 2, 0, 5);
  sizes(2, 4, 2, 3, 0);
}

TEST_CASE("cpu: reference heads argument errors") {
  const Problem x = random_problem(2, 4, 2, 3, 5, 8);
  const auto heads = [](Index B, Index H, Index N, Index d) {
    return HeadsArray<double>(B, H, N, d);
  };
  const auto message = [&](const HeadsArray<double>& K, const HeadsArray<double>& V,
                           const HeadsArray<double>& dO, const Matrix<double>& dLSE,
                           const ReferenceHeadsOptions& options = {}) {
    return message_of([&] {
      reference_backward_heads(x.Q.view(), K.view(), V.view(), dO.view(), options, &dLSE);
    });
  };
  CHECK(message(x.K, x.V, x.dO, x.dLSE) == "accepted");
  CHECK(message(heads(1, 2, 5, 8), x.V, x.dO, x.dLSE) ==
        "K must be [B, Hkv, Nk, d] = [2, 2, 5, 8], found [1, 2, 5, 8]");
  CHECK(message(heads(2, 2, 5, 7), x.V, x.dO, x.dLSE) ==
        "K must be [B, Hkv, Nk, d] = [2, 2, 5, 8], found [2, 2, 5, 7]");
  CHECK(message(x.K, heads(2, 4, 5, 8), x.dO, x.dLSE) ==
        "V must be [B, Hkv, Nk, d] = [2, 2, 5, 8], found [2, 4, 5, 8]");
  CHECK(message(x.K, x.V, heads(2, 4, 5, 8), x.dLSE) ==
        "dO must be [B, H, Nq, d] = [2, 4, 3, 8], found [2, 4, 5, 8]");
  CHECK(message(x.K, x.V, x.dO, Matrix<double>(4, 3)) == "dLSE must be [8, 3], found [4, 3]");
  for (const Index Hkv : {0, 3, 8}) {
    CHECK(message(heads(2, Hkv, 5, 8), heads(2, Hkv, 5, 8), x.dO, x.dLSE) ==
          "the number of key/value heads must divide the number of heads, found " +
              std::to_string(Hkv) + " and 4");
  }

  const std::vector<Mask> masks(8, Mask::Ones(3, 5)), few(4, Mask::Ones(3, 5)),
      wrong(8, Mask::Ones(5, 3));
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.dropout = 0.5, .masks = masks}) == "accepted");
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.dropout = 0.5}) ==
        "there must be a mask for each of the 8 heads, found 0");
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.masks = few}) ==
        "there must be a mask for each of the 8 heads, found 4");
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.dropout = 0.5, .masks = wrong}) ==
        "the mask must be (Nq, Nk) = (3, 5), found (5, 3)");
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.dropout = 1.0, .masks = masks}) ==
        "dropout must be at least 0 and below 1, found 1.000000");
  CHECK(message(x.K, x.V, x.dO, x.dLSE, {.scale = kNaN}) ==
        "the scale must be finite in float64, found nan");

  // Without heads nothing else would notice.
  const HeadsArray<double> none(0, 4, 3, 0);
  CHECK_THROWS_AS(reference_attention_heads(none.view(), none.view(), none.view()),
                  std::invalid_argument);
}

// Chapter 06: the backward pass, on the CPU and on the device in both forms, against gradients
// in float64: finite differences, naive attention, PyTorch.
//
// Cases named Kxx come from public reports about other kernels; each says where from. Not
// expressible here: K07 diffusers 14338 for H = N (heads; the same mistake for N = d is here),
// K09 levanter 449 and native-sparse-attention 27 (grouped heads), K09 nki-samples 81
// (dropout), K09 tilelang 2461 (padded statistics: here they have Nq entries, and a ragged tile
// reads no more).
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <functional>

#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_shapes.hpp"
#include "chapters/06_backward_recompute/backward_tile.hpp"
#include "chapters/06_backward_recompute/backward_traffic.hpp"
#include "chapters/06_backward_recompute/causal_walks.hpp"
#include "chapters/06_backward_recompute/wrong_versions.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/results.hpp"
#include "tests/support/sizes.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

struct Options {
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
  std::optional<Vector<float>> dLSE = {};
};
struct Head {
  Floats Q, K, V, dO;
};
struct Gradients {
  Floats dQ, dK, dV;
  Vector<float> delta;
};
using Backward = std::function<Gradients(const Head&, const Options&)>;

template <class T>
struct Forward {
  Matrix<T> O;
  Vector<T> m, l, LSE;
};
template <class T>
Forward<T> forward(const Matrix<T>& Q, const Matrix<T>& K, const Matrix<T>& V, bool causal,
                   std::optional<double> scale = {}) {
  const Index Nq = Q.rows();
  Forward<T> f{Matrix<T>(Nq, Q.cols()), Vector<T>(Nq), Vector<T>(Nq), Vector<T>(Nq)};
  saved_forward_cpu<T>(Q, K, V, f.O, f.m, f.l, f.LSE, {}, causal, scale);
  return f;
}

// Forward and backward. Gradients start as NaN, and inputs must come back unchanged.
Gradients on_cpu(const Head& head, const Options& o) {
  const Index Nq = head.Q.rows(), d = head.Q.cols();
  const auto f = forward<float>(head.Q, head.K, head.V, o.causal, o.scale);
  const Floats nan_Q = Floats::Constant(Nq, d, NAN),
               nan_K = Floats::Constant(head.K.rows(), d, NAN);
  Gradients g{nan_Q, nan_K, nan_K, Vector<float>::Constant(Nq, NAN)};
  const auto call = [&] {
    backward_recompute_cpu<float>(head.Q, head.K, head.V, f.O, f.m, f.l, head.dO, g.delta, g.dQ,
                                  g.dK, g.dV, o.tile, o.causal, o.scale,
                                  o.dLSE ? &*o.dLSE : nullptr);
  };
  check_unchanged(call, head.Q, head.K, head.V, head.dO, f.O, f.m, f.l);
  return g;
}

struct DeviceHead {
  explicit DeviceHead(const Head& head, const Options& o)
      : Q(to_device(head.Q)),
        K(to_device(head.K)),
        V(to_device(head.V)),
        dO(to_device(head.dO)),
        O(head.Q.rows(), head.Q.cols()),
        m(head.Q.rows()),
        l(head.Q.rows()) {
    DeviceArray<float> LSE(head.Q.rows());
    saved_forward_cuda(Q, K, V, O, m, l, LSE, {8, 8}, o.causal, o.scale);
    if (o.dLSE) dLSE = to_device(*o.dLSE);
  }
  DeviceMatrix<float> Q, K, V, dO, O;
  DeviceArray<float> m, l;
  std::optional<DeviceArray<float>> dLSE;
};

Gradients on_device(const Head& head, const Options& o, BackwardForm form) {
  const DeviceHead h(head, o);
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  DeviceMatrix<float> dQ(Nq, d), dK(Nk, d), dV(Nk, d);  // new arrays are NaN
  DeviceArray<float> delta(Nq);
  backward_recompute_cuda(h.Q, h.K, h.V, h.O, h.m, h.l, h.dO, delta, dQ, dK, dV, o.tile,
                          o.causal, o.scale, h.dLSE ? &*h.dLSE : nullptr, form);
  check_holds(h.Q, head.Q, h.K, head.K, h.V, head.V, h.dO, head.dO);
  return {to_host(dQ), to_host(dK), to_host(dV), to_host(delta)};
}

// Runs a body on the device, in both forms.
void in_both_forms(const std::function<void(const Backward&)>& body) {
  if (!have_device()) return;
  for (const BackwardForm form : {BackwardForm::two_passes, BackwardForm::atomic_dQ}) {
    CAPTURE(form == BackwardForm::atomic_dQ);
    body([form](const Head& head, const Options& o) { return on_device(head, o, form); });
  }
}

ReferenceGradients exact(const Head& head, const Options& o) {
  Vector<double> dLSE;
  if (o.dLSE) dLSE = o.dLSE->cast<double>();
  return reference_backward(head.Q.cast<double>(), head.K.cast<double>(), head.V.cast<double>(),
                            head.dO.cast<double>(), {.scale = o.scale, .causal = o.causal},
                            o.dLSE ? &dLSE : nullptr);
}

Head random_head(Index Nq, Index Nk, Index d, std::uint64_t seed = 0, double deviation = 1.0) {
  return {random_matrix<float>(Nq, d, seed, 0, deviation),
          random_matrix<float>(Nk, d, seed, 1, deviation), random_matrix<float>(Nk, d, seed, 2),
          random_matrix<float>(Nq, d, seed, 3)};
}
Vector<float> random_dLSE(Index Nq, std::uint64_t seed = 0) {
  return random_matrix<float>(Nq, 1, seed, 4).col(0);
}

// ---- bodies that run on all of them

void ragged_sizes(const Backward& backward) {
  for (const bool causal : {false, true}) {
    for (const Index d : {1, 20}) {
      CAPTURE(causal);
      CAPTURE(d);
      each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
        const Head head = random_head(Nq, Nk, d);
        Options options{.tile = {4, 8}, .causal = causal};
        if (d == 20) options.dLSE = random_dLSE(Nq);
        check_gradients(backward(head, options), exact(head, options));
      });
    }
  }
}

void tile_shapes(const Backward& backward) {
  for (const Size size : {Size{23, 23}, {19, 30}, {30, 19}}) {
    const Head head = random_head(size.Nq, size.Nk, 6, 1);
    Options options{.causal = true, .dLSE = random_dLSE(size.Nq, 1)};
    const auto expected = exact(head, options);
    for (const Tiling tile :
         {Tiling{1, 1}, {2, 3}, {4, 4}, {8, 5}, {5, 8}, {32, 32}, {7, 100}, {100, 7}}) {
      CAPTURE(size);
      CAPTURE(tile);
      options.tile = tile;
      check_gradients(backward(head, options), expected);
    }
  }
}

void scales(const Backward& backward) {
  const Head head = random_head(21, 21, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 0.01, 3.0}) {
    CAPTURE(scale);
    const Options options{.tile = {4, 8}, .causal = true, .scale = scale};
    check_gradients(backward(head, options), exact(head, options));
  }
  const Gradients zero = backward(head, {.tile = {4, 8}, .scale = 0.0});
  CHECK((zero.dQ.array() == 0).all());
  CHECK((zero.dK.array() == 0).all());
  CHECK_THROWS_AS(backward(head, {.tile = {4, 8}, .scale = std::nan("")}),
                  std::invalid_argument);
}

void goldens_agree(const Backward& backward) {
  for (const GradientGolden& g : gradient_goldens()) {
    CAPTURE(g.name);
    const Options options{
        .tile = {16, 32}, .causal = g.causal, .scale = g.scale, .dLSE = g.dLSE};
    check_gradients(backward({g.Q, g.K, g.V, g.dO}, options), g);
  }
}

// delta_i = sum_c dO_ic O_ic - dLSE_i: for a row of the softmax that is sum_j P_ij dP_ij, too.
void delta_is_right(const Backward& backward) {
  const Head head = random_head(11, 9, 40, 3);
  const Options options{.tile = {4, 4}, .dLSE = random_dLSE(11, 3)};
  const auto forward = reference_attention(head.Q.cast<double>(), head.K.cast<double>(),
                                           head.V.cast<double>(), {.keep_P = true});
  Vector<double> by_O = -options.dLSE->cast<double>(), by_P = by_O;
  for (Index i = 0; i < 11; ++i) {
    for (Index c = 0; c < 40; ++c) {
      by_O[i] += double{head.dO(i, c)} * forward.O(i, c);
      for (Index j = 0; j < 9; ++j) {
        by_P[i] += forward.P(i, j) * double{head.dO(i, c)} * double{head.V(j, c)};
      }
    }
  }
  const Gradients g = backward(head, options);
  check_close(g.delta, by_O, kFloat32Gradient);
  check_close(g.delta, by_P, kFloat32Gradient);
}

// What must hold whatever the numbers are.
void properties(const Backward& backward) {
  const Options options{.tile = {8, 8}, .causal = false, .scale = 0.5};
  const Head head = random_head(19, 21, 8, 5);
  const Gradients g = backward(head, options);
  // the loss does not change if a vector is added to all keys: the rows of dS sum to 0
  const Matrix<double> sum_dK = g.dK.cast<double>().colwise().sum();
  const auto expected = exact(head, options);
  CHECK(expected.dK.cwiseAbs().maxCoeff() > 0.1);
  CHECK(sum_dK.cwiseAbs().maxCoeff() < 1e-5);
  // each row of P sums to 1
  check_close(g.dV.colwise().sum().eval(), head.dO.cast<double>().colwise().sum().eval(),
              kFloat32Gradient);
  // constant values: O does not depend on Q and K
  Head constant = head;
  constant.V.setConstant(3);
  const Gradients none = backward(constant, options);
  CHECK(none.dQ.cwiseAbs().maxCoeff() < 1e-4);
  CHECK(none.dK.cwiseAbs().maxCoeff() < 1e-4);
  // keys and values in another order: dK and dV in that order, dQ as before
  Head turned = head;
  turned.K = head.K.colwise().reverse();
  turned.V = head.V.colwise().reverse();
  const Gradients t = backward(turned, options);
  check_close(t.dQ, g.dQ, kFloat32Gradient);
  check_close(t.dK.colwise().reverse().eval(), g.dK, kFloat32Gradient);
  check_close(t.dV.colwise().reverse().eval(), g.dV, kFloat32Gradient);
  // linear in dO
  Head twice = head;
  twice.dO *= 2;
  check_close(backward(twice, options).dQ, (2 * g.dQ).eval(), kFloat32Gradient);
}

// Rows with l = 0 add exactly 0 whatever they hold, and keys that no row sees get exactly 0.
void rows_without_keys(const Backward& backward) {
  const auto all_zero = [](const Floats& x) { return (x.array() == 0).all(); };
  for (const Tiling tile : {Tiling{1, 1}, {2, 2}, {4, 4}, {3, 2}, {64, 64}}) {
    CAPTURE(tile);
    Options causal{.tile = tile, .causal = true};
    // K03 flash-attention 2421 and 2776: nothing to walk, and yet something to write
    const Gradients no_queries = backward(random_head(0, 3, 4), causal);
    CHECK(no_queries.dK.rows() == 3);
    CHECK(all_zero(no_queries.dK));
    CHECK(all_zero(no_queries.dV));
    CHECK(all_zero(backward(random_head(3, 0, 4), causal).dQ));
    CHECK(all_zero(backward(random_head(3, 0, 4), {.tile = tile}).dQ));

    // rows 0 to 4 see no key; what is NaN there stays there
    Head head = random_head(9, 4, 5, 7);
    causal.dLSE = random_dLSE(9, 7);
    const auto expected = exact(head, causal);
    head.dO.topRows(5).setConstant(NAN);
    head.Q.topRows(5).setConstant(NAN);
    causal.dLSE->head(5).setConstant(kInf<float>);
    const Gradients g = backward(head, causal);
    CHECK(all_zero(g.dQ.topRows(5)));
    check_gradients(g, expected);

    // a row whose visible scores are all -inf counts as one without keys
    const float inf = kInf<float>;
    Head minus_inf{column({1, 1}), column({-inf, -inf, 2}), column({1, 2, 3}),
                   column({NAN, 1})};
    const Gradients h = backward(minus_inf, {.tile = tile, .causal = true, .scale = 1.0});
    CHECK(h.dQ(0, 0) == 0);
    CHECK(h.dK(2, 0) == 0);  // row 1 gives all its weight to key 2: dS = 0 there
    CHECK(h.dV(2, 0) == 1);
    CHECK(h.dV(0, 0) == 0);
    CHECK(h.dV(1, 0) == 0);
  }
}

// NaN or infinity in one element at a time: it reaches what the contract names, and no more.
void nan_and_infinity(const Backward& backward) {
  for (const bool causal : {false, true}) {
    for (const float bad : {NAN, kInf<float>}) {
      for (int matrix = 0; matrix < 5; ++matrix) {
        const Head clean = random_head(5, 4, 2, 8);
        const Index size = matrix == 4 ? 5 : matrix == 1 || matrix == 2 ? 8 : 10;
        for (Index e = 0; e < size; ++e) {
          CAPTURE(causal);
          CAPTURE(bad);
          CAPTURE(matrix);
          CAPTURE(e);
          Head head = clean;
          Options options{.tile = {2, 2}, .causal = causal, .dLSE = random_dLSE(5, 8)};
          float* const data[] = {head.Q.data(), head.K.data(), head.V.data(), head.dO.data(),
                                 options.dLSE->data()};
          data[matrix][e] = bad;
          check_gradients(backward(head, options), exact(head, options), kFloat32Gradient,
                          true);
        }
      }
    }
  }
  // a value's NaN in words: dV does not depend on V
  Head head = random_head(3, 3, 2, 9);
  head.V(2, 0) = NAN;
  const Gradients g = backward(head, {.tile = {2, 2}, .causal = true});
  CHECK(g.dV.array().isFinite().all());
  CHECK(g.dQ.topRows(2).array().isFinite().all());
  CHECK(g.dQ.row(2).array().isNaN().all());
  CHECK(g.dK.array().isNaN().all());  // all keys are seen by row 2
}

void reported_cases(const Backward& backward) {
  const auto check = [&](const char* report, const Head& head, Options options,
                         const std::vector<double>& dQ, const std::vector<double>& dK,
                         const std::vector<double>& dV) {
    CAPTURE(report);
    for (const Tiling tile : {Tiling{1, 1}, {2, 1}, {1, 2}, {4, 4}}) {
      CAPTURE(tile);
      options.tile = tile;
      options.scale = 1.0;
      check_gradients(backward(head, options),
                      ReferenceGradients{doubles(dQ), doubles(dK), doubles(dV)}, kFloat32);
    }
  };
  check("K08 flash-attention 1817, 1137, 889: the loss is LSE itself",
        {column({1}), column({0, 1}), column({0, 1}), column({0})}, {.dLSE = vector({1})},
        {0.731059}, {0.268941, 0.731059}, {0, 0});
  check("K09 flash-attention 443: more queries than keys",
        {column({1, 1, 1, 1}), column({1, 2}), column({1, 3}), column({1, 1, 1, 1})},
        {.causal = true}, {0, 0, 0, 0.393224}, {-0.393224, 0.393224}, {1.268941, 0.731059});
  const float huge = 16777216;  // 2^24
  check("K09 pytorch 125674: from m and l the weights of huge scores are exact",
        {column({1}), column({huge, huge}), column({0, 1}), column({1})}, {}, {0},
        {-0.25, 0.25}, {0.5, 0.5});
  // K09 flash-attention 41, flash-linear-attention 892: keys seen by no query
  const Gradients unseen = backward(random_head(0, 5, 3), {.tile = {2, 2}, .causal = true});
  CHECK((unseen.dK.array() == 0).all());
  CHECK((unseen.dV.array() == 0).all());
  // K05 framework 39 and triton 621: every channel, also beyond 32 and 64
  for (const Index d : {31, 32, 33, 64, 100, 128}) {
    CAPTURE(d);
    const Head head{Floats::Zero(2, d), random_matrix<float>(3, d, 0, 0), Floats::Ones(3, d),
                    Floats::Ones(2, d)};
    const Gradients g = backward(head, {.tile = {2, 2}});
    check_close(g.dV, Matrix<double>::Constant(3, d, 2.0 / 3), kFloat32);
  }
  // K19 TransformerEngine 3216: d = 256, channels 50 times as large, a common offset
  Head outliers = random_head(9, 11, 256, 6);
  outliers.K.array() += 3;
  outliers.Q.col(7) *= 50;
  outliers.K.col(7) *= 50;
  const Options options{.tile = {4, 4}, .causal = true};
  // scores of a thousand and more are rounded to 1e-4, and the weights with them
  check_gradients(backward(outliers, options), exact(outliers, options), {1e-3, 1e-2});
  // K07 diffusers 14338: N = d, where a transposed operand passes every check of shapes
  const Head square = random_head(8, 8, 8, 10);
  check_gradients(backward(square, {.tile = {4, 4}}), exact(square, {}));
}

// K10 flash-attention 414, 988, 1245: bits from run to run.
void repeatable(const Backward& backward, bool dQ_too) {
  const Head head = random_head(70, 90, 24, 9);
  const Options options{.tile = {16, 32}, .causal = true, .dLSE = random_dLSE(70, 9)};
  const Gradients first = backward(head, options);
  for (int run = 0; run < 30; ++run) {
    backward({head.K, head.Q, head.Q, head.K}, {.tile = {32, 16}, .scale = 0.1});
    const Gradients again = backward(head, options);
    if (dQ_too) CHECK(same_bits(again.dQ, first.dQ));
    check_close(again.dQ, first.dQ, {1e-6, 1e-6});
    CHECK(same_bits(again.dK, first.dK));
    CHECK(same_bits(again.dV, first.dV));
    CHECK(same_bits(again.delta, first.delta));
  }
}

void bad_arguments(const Backward& backward) {
  const Head head = random_head(3, 4, 5);
  const auto message = [&](const Head& h, const Options& o) {
    return message_of([&] { backward(h, o); });
  };
  Head bad = head;
  bad.dO = Floats::Zero(3, 6);
  CHECK(message(bad, {.tile = {2, 2}}) == "dO must be [3, 5], found [3, 6]");
  bad = head;
  bad.V = Floats::Zero(3, 5);
  CHECK(message(bad, {.tile = {2, 2}}) == "V must be [4, 5], found [3, 5]");
  CHECK(message(head, {.tile = {2, 2}, .dLSE = random_dLSE(2)}) ==
        "dLSE must be [3], found [2]");
  CHECK(message(head, {.tile = {2, 0}}) == "Bc must be at least 1, found 0");
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every ragged size agrees with naive attention") {
  in_both_forms(ragged_sizes);
}

TEST_CASE("cpu: the result does not depend on the tile shape") { tile_shapes(on_cpu); }
TEST_CASE("device: the result does not depend on the tile shape") {
  in_both_forms(tile_shapes);
}

TEST_CASE("cpu: any finite scale is right and others are refused") { scales(on_cpu); }
TEST_CASE("device: any finite scale is right and others are refused") { in_both_forms(scales); }

TEST_CASE("cpu: PyTorch's float64 gradients are met") { goldens_agree(on_cpu); }
TEST_CASE("device: PyTorch's float64 gradients are met") { in_both_forms(goldens_agree); }

TEST_CASE("cpu: delta is the row sum of dO and O without dLSE") { delta_is_right(on_cpu); }
TEST_CASE("device: delta is the row sum of dO and O without dLSE") {
  in_both_forms(delta_is_right);
}

TEST_CASE("cpu: properties of gradients") { properties(on_cpu); }
TEST_CASE("device: properties of gradients") { in_both_forms(properties); }

TEST_CASE("cpu: rows without keys add exactly 0 whatever they hold K01 K03") {
  rows_without_keys(on_cpu);
}
TEST_CASE("device: rows without keys add exactly 0 whatever they hold K01 K03") {
  in_both_forms(rows_without_keys);
}

TEST_CASE("cpu: NaN and infinity reach what they must and no more K13") {
  nan_and_infinity(on_cpu);
}
TEST_CASE("device: NaN and infinity reach what they must and no more K13") {
  in_both_forms(nan_and_infinity);
}

TEST_CASE("cpu: reported cases K05 K07 K08 K09 K19") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K05 K07 K08 K09 K19") { in_both_forms(reported_cases); }

TEST_CASE("cpu: the same bits at every run K10") { repeatable(on_cpu, true); }
TEST_CASE("device: the same bits at every run but for dQ by atomics K10") {
  if (!have_device()) return;
  repeatable([](const Head& head,
                const Options& o) { return on_device(head, o, BackwardForm::two_passes); },
             true);
  repeatable([](const Head& head,
                const Options& o) { return on_device(head, o, BackwardForm::atomic_dQ); },
             false);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") { in_both_forms(bad_arguments); }

// ---- the CPU's own

namespace {

struct Doubles {
  Matrix<double> Q, K, V, dO;
  Vector<double> dLSE;
};
Doubles random_doubles(Index Nq, Index Nk, Index d, std::uint64_t seed) {
  return {random_matrix<double>(Nq, d, seed, 0), random_matrix<double>(Nk, d, seed, 1),
          random_matrix<double>(Nk, d, seed, 2), random_matrix<double>(Nq, d, seed, 3),
          random_matrix<double>(Nq, 1, seed, 4).col(0)};
}

ReferenceGradients backward_in_float64(const Doubles& in, Tiling tile, bool causal,
                                       std::optional<double> scale = {}) {
  const auto f = forward<double>(in.Q, in.K, in.V, causal, scale);
  ReferenceGradients g{Matrix<double>::Constant(in.Q.rows(), in.Q.cols(), NAN),
                       Matrix<double>::Constant(in.K.rows(), in.Q.cols(), NAN),
                       Matrix<double>::Constant(in.K.rows(), in.Q.cols(), NAN)};
  Vector<double> delta(in.Q.rows());
  backward_recompute_cpu<double>(in.Q, in.K, in.V, f.O, f.m, f.l, in.dO, delta, g.dQ, g.dK,
                                 g.dV, tile, causal, scale, &in.dLSE);
  return g;
}

// sum(dO * O) + sum(dLSE * LSE) over the rows that see a key.
double loss(const Doubles& in, bool causal, double scale) {
  const auto f = forward<double>(in.Q, in.K, in.V, causal, scale);
  double sum = 0;
  for (Index i = 0; i < in.Q.rows(); ++i) {
    if (f.l[i] == 0) continue;
    sum += f.LSE[i] * in.dLSE[i];
    for (Index c = 0; c < in.Q.cols(); ++c) sum += f.O(i, c) * in.dO(i, c);
  }
  return sum;
}

}  // namespace

TEST_CASE("cpu: the gradients are those of finite differences in float64") {
  const double h = 1e-5;
  for (const Size size : {Size{5, 5}, {3, 6}, {6, 3}}) {
    for (const bool causal : {false, true}) {
      for (const double scale : {0.6, -1.0}) {
        CAPTURE(size);
        CAPTURE(causal);
        CAPTURE(scale);
        Doubles in = random_doubles(size.Nq, size.Nk, 3, 11);
        const auto g = backward_in_float64(in, {2, 2}, causal, scale);
        const auto differences = [&](Matrix<double>& X) {
          Matrix<double> dX(X.rows(), X.cols());
          for (Index e = 0; e < X.size(); ++e) {
            const double x = X.data()[e];
            X.data()[e] = x + h;
            const double up = loss(in, causal, scale);
            X.data()[e] = x - h;
            const double down = loss(in, causal, scale);
            X.data()[e] = x;
            dX.data()[e] = (up - down) / (2 * h);
          }
          return dX;
        };
        check_gradients(
            g, ReferenceGradients{differences(in.Q), differences(in.K), differences(in.V)},
            {1e-9, 1e-9});
      }
    }
  }
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Index Nk : {0, 1, 20, 33, 64, 65, 129}) {
    for (const bool causal : {false, true}) {
      CAPTURE(Nk);
      CAPTURE(causal);
      const Doubles in = random_doubles(33, Nk, 16, 1);
      check_gradients(backward_in_float64(in, {8, 64}, causal),
                      reference_backward(in.Q, in.K, in.V, in.dO, {.causal = causal}, &in.dLSE),
                      kFloat64);
    }
  }
}

TEST_CASE("cpu: the worked example of the lesson") {
  const Gradients g = on_cpu({column({1}), column({1, 2}), column({0, 1}), column({1})},
                             {.tile = {1, 1}, .scale = 1.0});
  const auto near = [](double value) { return doctest::Approx(value).epsilon(2e-4); };
  CHECK(g.delta[0] == near(0.7311));
  CHECK(g.dQ(0, 0) == near(0.1966));
  CHECK(g.dK(0, 0) == near(-0.1966));
  CHECK(g.dK(1, 0) == near(0.1966));
  CHECK(g.dV(0, 0) == near(0.2689));
  CHECK(g.dV(1, 0) == near(0.7311));
}

// Later chapters call the steps with other counts than a causal mask gives.
TEST_CASE("cpu: the steps of a pair take any visible counts and keep to them") {
  const Index rows = 5, cols = 6, d = 7;
  const double scale = -0.7;
  const std::vector<Index> visible{4, 0, 3, 1, 2};
  Doubles in = random_doubles(rows, cols, d, 3);
  const Vector<double> m = in.dLSE, l = Vector<double>::Constant(rows, 2.5), delta = 2 * m;
  in.dO.row(1).setConstant(NAN);
  in.K.row(4).setConstant(NAN);  // keys 4 and 5 are seen by no row
  in.K.row(5).setConstant(-1e300);
  in.V.row(5).setConstant(NAN);
  ReferenceGradients e{Matrix<double>::Zero(rows, d), Matrix<double>::Zero(cols, d),
                       Matrix<double>::Zero(cols, d)};
  ReferenceGradients g = e;
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < visible[static_cast<std::size_t>(i)]; ++j) {
      const double P = std::exp(scale * in.Q.row(i).dot(in.K.row(j)) - m[i]) / l[i];
      const double dS = P * (in.dO.row(i).dot(in.V.row(j)) - delta[i]);
      e.dQ.row(i) += scale * dS * in.K.row(j);
      e.dK.row(j) += scale * dS * in.Q.row(i);
      e.dV.row(j) += P * in.dO.row(i);
    }
  }
  BackwardTile<double> tile;
  rebuild_P<double>(tile, in.Q, in.K, m, l, scale, visible);
  add_dV<double>(g.dV, tile, in.dO, visible);
  compute_dP<double>(tile, in.dO, in.V);
  compute_dS<double>(tile, delta, visible);
  add_dQ<double>(g.dQ, tile, in.K, scale, visible);
  add_dK<double>(g.dK, tile, in.Q, scale, visible);
  check_gradients(g, e, kFloat64);
}

TEST_CASE("cpu: m = LSE and l = 1 are statistics too") {
  const Head head = random_head(9, 12, 6, 2);
  const auto f = forward<float>(head.Q, head.K, head.V, true);
  const Vector<float> ones = Vector<float>::Ones(9);
  Gradients g{Floats(9, 6), Floats(12, 6), Floats(12, 6), Vector<float>(9)};
  backward_recompute_cpu<float>(head.Q, head.K, head.V, f.O, f.LSE, ones, head.dO, g.delta,
                                g.dQ, g.dK, g.dV, {4, 4}, true);
  check_gradients(g, exact(head, {.causal = true}));
}

// A tile of (Br, Bc) = (4, 4) from key k_start on visits the query tiles from the first that
// sees one of its keys: compared with the kinds of all tiles.
TEST_CASE("cpu: the walk of a key tile begins at the first tile that is not hidden") {
  for (Index Nq = 0; Nq < 14; ++Nq) {
    for (Index Nk = 1; Nk < 14; ++Nk) {
      for (const bool causal : {false, true}) {
        const Index offset = mask_offset(Nq, Nk, causal), Br = 4, Bc = 4;
        for (Index k_start = 0; k_start < Nk; k_start += Bc) {
          Index expected = Nq;
          for (Index q = 0; q < Nq && expected == Nq; q += Br) {
            if (classify_tile(q, std::min(Br, Nq - q), k_start, std::min(Bc, Nk - k_start),
                              offset) != TileKind::hidden)
              expected = q;
          }
          CHECK(first_query_tile(k_start, Nq, Br, offset) == expected);
        }
      }
    }
  }
  CHECK(first_query_tile(4, 5, 4, -10) == 5);  // nobody sees the key: past the end
  CHECK(used_keys(0.0f, 9, 0, 4, 9) == 0);
  CHECK(used_keys(1.0f, 1, 0, 4, 0) == 2);
  CHECK(used_keys(NAN, 1, 0, 4, 0) == 2);
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  const Head head = random_head(9, 5, 4);
  const Options options{.tile = {INT64_MAX, INT64_MAX}, .causal = true};
  check_gradients(on_cpu(head, options), exact(head, options));
}

TEST_CASE("cpu: blocks of larger matrices pass as they are") {
  const Head head = random_head(20, 20, 12, 4);
  const auto part = [](auto& X) { return X.middleCols(3, 5); };
  const Head narrow{part(head.Q), part(head.K), part(head.V), part(head.dO)};
  const auto f = forward<float>(narrow.Q, narrow.K, narrow.V, false);
  Gradients g{Floats::Zero(20, 12), Floats::Zero(20, 12), Floats::Zero(20, 12),
              Vector<float>(20)};
  backward_recompute_cpu<float>(part(head.Q), part(head.K), part(head.V), f.O, f.m, f.l,
                                part(head.dO), g.delta, part(g.dQ), part(g.dK), part(g.dV),
                                {8, 8});
  CHECK(g.dQ.leftCols(3).isZero(0));
  CHECK(g.dQ.rightCols(4).isZero(0));
  check_gradients(Gradients{part(g.dQ), part(g.dK), part(g.dV), g.delta}, exact(narrow, {}));
}

TEST_CASE("cpu: every shape is checked and named") {
  const Shape q{3, 5}, k{4, 5};
  const BackwardShapes right{q, k, k, q, q, q, k, k, 3, 3, 3, 3};
  const auto message = [&](auto member, auto value) {
    BackwardShapes shapes = right;
    shapes.*member = value;
    return message_of([&] { require_backward_shapes(shapes); });
  };
  using S = BackwardShapes;
  CHECK(message(&S::Q, q) == "accepted");
  CHECK(message(&S::O, k) == "O must be [3, 5], found [4, 5]");
  CHECK(message(&S::dO, k) == "dO must be [3, 5], found [4, 5]");
  CHECK(message(&S::dQ, k) == "dQ must be [3, 5], found [4, 5]");
  CHECK(message(&S::dK, q) == "dK must be [4, 5], found [3, 5]");
  CHECK(message(&S::dV, q) == "dV must be [4, 5], found [3, 5]");
  CHECK(message(&S::m, 2) == "m must be [3], found [2]");
  CHECK(message(&S::l, 2) == "l must be [3], found [2]");
  CHECK(message(&S::delta, 2) == "delta must be [3], found [2]");
  CHECK(message(&S::dLSE, 2) == "dLSE must be [3], found [2]");
  CHECK(message(&S::dLSE, std::nullopt) == "accepted");
}

// ---- errata

TEST_CASE("cpu: errata E11 the row sum in dS is over all keys and not over a tile") {
  const auto Q = doubles({1}), K = doubles({1, 2}), V = doubles({0, 1}), dO = doubles({1});
  const auto f = forward<double>(Q, K, V, false, 1.0);
  const auto wrong = [&](Index Bc) {
    return wrong::dS_with_tile_sums(Q, K, V, f.m, f.l, dO, Bc, 1.0);
  };
  CHECK(wrong(1)(0, 0) == doctest::Approx(0));
  CHECK(wrong(1)(0, 1) == doctest::Approx(0.1966).epsilon(1e-3));
  CHECK(wrong(1)(0, 0) * 1 + wrong(1)(0, 1) * 2 ==
        doctest::Approx(0.3932).epsilon(1e-3));  // dQ
  // with all keys in one tile the listing is right, and so is the chapter with any tile
  CHECK(wrong(2)(0, 0) == doctest::Approx(-0.1966).epsilon(1e-3));
  CHECK(wrong(2)(0, 1) == doctest::Approx(0.1966).epsilon(1e-3));
  for (const Index Bc : {1, 2}) {
    const auto g =
        backward_in_float64({Q, K, V, dO, Vector<double>::Zero(1)}, {1, Bc}, false, 1.0);
    CHECK(g.dQ(0, 0) == doctest::Approx(0.1966).epsilon(1e-3));
    CHECK(g.dK(0, 0) == doctest::Approx(-0.1966).epsilon(1e-3));
  }
}

namespace {

void mask_applies_again(const Backward& backward) {
  for (const float key : {1.0f, 100.0f}) {
    CAPTURE(key);
    const Head head{column({1, 1}), column({0, key}), column({1, 2}), column({1, 1})};
    for (const Tiling tile : {Tiling{1, 1}, {2, 2}}) {
      const Options options{.tile = tile, .causal = true, .scale = 1.0};
      const Gradients g = backward(head, options);
      check_gradients(g, exact(head, options));
      CHECK(g.dQ(0, 0) == 0);  // one key seen: nothing to move
    }
  }
}

}  // namespace

TEST_CASE("cpu: errata E33 the mask applies again when P is rebuilt") {
  CHECK(wrong::weight_without_mask(1.0f, 0.0f, 1.0f) == doctest::Approx(2.718).epsilon(1e-3));
  CHECK(std::isinf(wrong::weight_without_mask(100.0f, 0.0f, 1.0f)));
  mask_applies_again(on_cpu);
}
TEST_CASE("device: errata E33 the mask applies again when P is rebuilt") {
  in_both_forms(mask_applies_again);
}

namespace {

// Elements that a loop over pairs of tiles moves: what stays is loaded and stored once a turn
// of the outer loop, what passes once a pair. In units of one row of d.
std::int64_t moved_rows(Index N, Index B, int stays, int passes) {
  std::int64_t rows = 0;
  for (Index outer = 0; outer < N; outer += B) {
    rows += stays * B;
    for (Index inner = 0; inner < N; inner += B) rows += passes * B;
  }
  return rows;
}

}  // namespace

TEST_CASE("cpu: errata E32 keys outside move less than queries outside") {
  const std::int64_t N = 1024, d = 64, B = 64;
  // keys outside: K, V loaded and dK, dV stored once; Q, dO loaded and dQ loaded and stored a
  // pair
  const std::int64_t keys_outside = moved_rows(N, B, 4, 4);
  // queries outside: Q, dO loaded and dQ stored once; K, V loaded, dK, dV loaded and stored a
  // pair
  const std::int64_t queries_outside = moved_rows(N, B, 3, 6);
  CHECK(keys_outside == 68 * N);
  CHECK(queries_outside == 99 * N);
  // the formulas say so too, with D (2 N d) and zeros (dQ, or dK and dV) on top
  CHECK(predict_atomic_dQ(N, N, d, {B, B}).matrices() == (68 + 2 + 1) * N * d);
  CHECK(predict_query_outer(N, N, d, {B, B}).matrices() == (99 + 2 + 2) * N * d);
  // and two passes, which compute P and dP twice, move hardly more than the better one
  CHECK(predict_two_passes(N, N, d, {B, B}).matrices() == (71 + 2) * N * d);
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  const Head head = random_head(70, 90, 64, 11);
  Options options{.causal = true, .dLSE = random_dLSE(70, 11)};
  const Gradients a = on_cpu(head, options);
  options.tile = {32, 32};
  in_both_forms([&](const Backward& backward) {
    const Gradients b = backward(head, options);
    check_gradients(b, a);
    check_close(b.delta, a.delta, kFloat32Gradient);
  });
}

TEST_CASE("device: any order of the threads gives the same bits but for dQ by atomics") {
  const Head head = random_head(20, 27, 10, 12);
  const Options options{.tile = {8, 8}, .causal = true};
  bool dQ_too = true;  // in the first form
  in_both_forms([&](const Backward& backward) {
    const Gradients first = backward(head, options);
    in_other_thread_orders([&] {
      const Gradients again = backward(head, options);
      if (dQ_too) CHECK(same_bits(again.dQ, first.dQ));
      CHECK(same_bits(again.dK, first.dK));
      CHECK(same_bits(again.dV, first.dV));
    });
    dQ_too = false;
  });
}

// What the kernels name is what the formulas say. No term has Nq Nk in it: neither P nor any
// other matrix of that size is written or read.
TEST_CASE("device: the counted traffic is the predicted one") {
  if (!have_device()) return;
  const Index d = 6;
  for (const Size size : {Size{10, 17}, {17, 10}, {16, 16}, {1, 9}, {0, 3}, {3, 0}}) {
    for (const bool causal : {false, true}) {
      for (const bool has_dLSE : {false, true}) {
        CAPTURE(size);
        CAPTURE(causal);
        CAPTURE(has_dLSE);
        Options options{.causal = causal};
        if (has_dLSE) options.dLSE = random_dLSE(size.Nq);
        const DeviceHead h(random_head(size.Nq, size.Nk, d), options);
        DeviceMatrix<float> dQ(size.Nq, d), dK(size.Nk, d), dV(size.Nk, d);
        DeviceArray<float> delta(size.Nq);
        for (const BackwardForm form : {BackwardForm::two_passes, BackwardForm::atomic_dQ}) {
          const Tiling tile{.Br = 4, .Bc = 8};
          reset_device_traffic();
          backward_recompute_cuda(h.Q, h.K, h.V, h.O, h.m, h.l, h.dO, delta, dQ, dK, dV, tile,
                                  causal, {}, h.dLSE ? &*h.dLSE : nullptr, form);
          const auto traffic = device_traffic();
          if (!counted(traffic)) return;
          const auto predict =
              form == BackwardForm::two_passes ? predict_two_passes : predict_atomic_dQ;
          const BackwardCounts p = predict(size.Nq, size.Nk, d, tile, causal, has_dLSE);
          CHECK(traffic->read_bytes == 4 * (p.reads + p.statistics_reads));
          CHECK(traffic->written_bytes == 4 * (p.writes + p.statistics_writes));
          CHECK(traffic->atomic_bytes == 4 * p.atomics);
        }
      }
    }
  }
}

TEST_CASE("device: default tiles fit and others are refused by name") {
  if (!have_device()) return;
  const std::int64_t h100 = 232448, t4 = 65536;
  for (std::int64_t d = 1; d <= 256; ++d) {
    for (const std::int64_t limit : {h100, t4}) {
      const Tiling tile = default_backward_tiling(d, limit), twice{2 * tile.Br, 2 * tile.Bc};
      CHECK(std::max(key_tile_shared_bytes(tile, d), query_tile_shared_bytes(tile, d)) <=
            limit);
      if (tile.Br < 64) {
        CHECK(std::max(key_tile_shared_bytes(twice, d), query_tile_shared_bytes(twice, d)) >
              limit);
      }
    }
  }
  CHECK(default_backward_tiling(128, h100).Br == 64);
  CHECK(default_backward_tiling(256, h100).Br == 32);
  CHECK(default_backward_tiling(64, t4).Br == 32);
  const Head head = random_head(2, 2, 256);
  const std::string expected =
      does_not_fit("backward tiles of Br = 64, Bc = 64 with d = 256", 427008);
  in_both_forms([&](const Backward& backward) {
    CHECK_THROWS_WITH_AS(backward(head, {.tile = {64, 64}}), expected.c_str(),
                         std::invalid_argument);
    CHECK_THROWS_AS(backward(head, {.tile = {INT64_MAX, INT64_MAX}}), std::invalid_argument);
    check_gradients(backward(head, {.tile = {32, 32}}),
                    exact(head, {}));  // the largest default
  });
}

// ---- the executable

namespace {

template <class T>
struct Written {
  Matrix<T> dQ, dK, dV;
};
template <class T>
Written<T> written(const std::string& folder) {
  return {load_matrix<T>(folder, "dq"), load_matrix<T>(folder, "dk"),
          load_matrix<T>(folder, "dv")};
}

void program_on_goldens(const std::string& device, const Arguments& more) {
  int count = 0;
  for (const GradientGolden& g : gradient_goldens()) {
    if (++count % 7 != 3 || g.scale) continue;  // a process a case: some of them are enough
    CAPTURE(g.name);
    const TemporaryFolder folder;
    const std::string out = folder.file("out/deep");
    Arguments arguments =
        joined(input_files(g.forward, {"q", "k", "v"}), golden_inputs(g, {"do"}));
    if (g.dLSE) arguments = joined(arguments, input_files(g.folder, {"dlse"}));
    run_on(device, joined(arguments, more), out);
    check_gradients(written<float>(out), g);
  }
  CHECK(count >= 24);
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}), "dS = 0.0000, 0.1966, dQ = 0.3932");
}

TEST_CASE("cpu: executable meets PyTorch's gradients") { program_on_goldens("cpu", {}); }
TEST_CASE("device: executable meets PyTorch's gradients") {
  if (!have_device()) return;
  program_on_goldens(device_kind(), {});
  program_on_goldens(device_kind(), {"--form", "atomic_dq"});
}

TEST_CASE("cpu: executable computes f8 input in float64 and keeps its type") {
  const TemporaryFolder folder;
  const Doubles in = random_doubles(7, 5, 3, 0);
  const Arguments inputs = put_inputs(folder, {{"q", to_npy(in.Q)},
                                               {"k", to_npy(in.K)},
                                               {"v", to_npy(in.V)},
                                               {"do", to_npy(in.dO)},
                                               {"dlse", to_npy(in.dLSE)}});
  const std::string out = folder.file("out");
  const ProgramResult r = run(inputs, {"--br", "2", "--bc", "3", "--causal", "--scale", "-0.7",
                                       "--out", out, "--json"});
  REQUIRE(r.exit_code == 0);
  CHECK(contains(r.out, "\"empty_rows\":2"));
  check_gradients(
      written<double>(out),
      reference_backward(in.Q, in.K, in.V, in.dO, {.scale = -0.7, .causal = true}, &in.dLSE),
      kFloat64);
}

TEST_CASE("cpu: executable gives the same bits with any number of threads") {
  const TemporaryFolder folder;
  std::vector<Written<float>> results;
  for (const char* threads : {"1", "2", "7"}) {
    setenv("OMP_NUM_THREADS", threads, 1);
    REQUIRE(run(words("--n 300 --nk 200 --d 24 --causal --br 16 --bc 8"),
                {"--out", folder.file("out")})
                .exit_code == 0);
    results.push_back(written<float>(folder.file("out")));
    CHECK(same_gradients(results.back(), results.front()));
  }
  unsetenv("OMP_NUM_THREADS");
}

// One (Nq, Nk) matrix of float32 would be 1 GiB here; the largest of all the processes that
// these tests have started must have stayed far below.
TEST_CASE("cpu: executable never holds a matrix of Nq by Nk") {
  REQUIRE(run(words("--n 16384 --d 2 --causal")).exit_code == 0);
  rusage children{};
  REQUIRE(getrusage(RUSAGE_CHILDREN, &children) == 0);
  CHECK(children.ru_maxrss < 512 * 1024);  // KiB
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto check = [&](Index Nq, Index Nk, const Arguments& inputs,
                         const std::string& device) {
    run_on(device, joined(inputs, {"--do", folder.file("q.npy")}), folder.file("out"));
    const Floats dQ = Floats::Zero(Nq, 4), dK = Floats::Zero(Nk, 4);
    check_gradients(written<float>(folder.file("out")), Written<float>{dQ, dK, dK}, {0, 0});
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const TemporaryFolder folder;
  const Matrix<double> f8 = Matrix<double>::Ones(2, 4);
  const std::string q = put(folder, "q.npy", to_npy(Floats(Floats::Ones(2, 4)))),
                    k = put(folder, "k.npy", to_npy(Floats(Floats::Ones(3, 4)))),
                    dlse = put(folder, "dlse.npy", to_npy(vector({1, 1, 1}))),
                    q_double = put(folder, "q_double.npy", to_npy(f8));
  check_refused({"--q", q, "--causal"}, "--k");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", k}, "k.npy: dimension 0 (Nq) is 3");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", q_double}, "q_double.npy is f8");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", q, "--dlse", dlse},
                "dlse.npy: dimension 0 (Nq) is 3");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", folder.file("none.npy")}, "none.npy");
  check_refused({"--do", q}, "--q");
  check_refused({"--do", q, "--n", "2"}, "--n");
  check_refused(words("--n 4 --form atomic_dq"), "--device");
  check_refused({"--n", "4", "--device", device_kind(), "--form", "three"}, "--form");
  check_refused(words("--br 0"), "--br");
  check_refused(words("--d 257"), "--d");
  check_refused(words("--scale nan"), "--scale");
  if (simulated()) check_refused(words("--device sim --d 256 --n 4 --br 64 --bc 64"), "232448");
}

// Chapter 07: batches of heads, forward and backward, on the CPU, by the plain kernels and by
// each rung of the ladder, against naive attention in float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from. K18 (two
// GPUs) and the float16 cases wait until there is something to run them with; K08
// flash-attention 2842 and K03 xformers 1042 need ragged batches.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <set>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "chapters/07_cuda_kernel/wrong_versions.hpp"
#include "common/cli/batch.hpp"
#include "common/device/eigen.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/results.hpp"
#include "tests/support/sizes.hpp"
#include "tests/support/strided_heads.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

// ---- what is tested: one body for the CPU, the plain kernels and the rungs

struct Options {
  Tiling tile = {8, 16};
  bool causal = false;
  std::optional<double> scale = {};
  int order = 0;  // Q has kOrders[order], K the next, then V, O; the CPU's memory is shifted
};
Order order_of(const Options& o, int which) { return kOrders[(o.order + which) % 3]; }

struct Inputs {
  Heads Q, K, V;
};
struct Result {
  Heads O;
  Floats LSE;
};
using Forward = std::function<Result(const Inputs&, const Options&)>;

Result on_cpu(const Inputs& in, const Options& o) {
  StridedHeads Q(in.Q, order_of(o, 0), o.order), K(in.K, order_of(o, 1), o.order),
      V(in.V, order_of(o, 2), 2 * o.order), O(nan_like(in.Q), order_of(o, 0), o.order);
  Floats LSE = Floats::Constant(in.Q.B() * in.Q.H(), in.Q.N(), NAN);
  batched_forward_cpu<float>(Q.view(), K.view(), V.view(), O.view(), LSE, o.tile, o.causal,
                             o.scale);
  check_holds(Q, in.Q, K, in.K, V, in.V);
  return {taken_out(O), LSE};
}

using Launcher =
    std::function<void(const DeviceHeads<float>&, const DeviceHeads<float>&,
                       const DeviceHeads<float>&, DeviceHeads<float>&, DeviceMatrix<float>&)>;
Result launched(const Inputs& in, const Options& o, const Launcher& launcher) {
  const auto Q = to_device(in.Q, order_of(o, 0)), K = to_device(in.K, order_of(o, 1)),
             V = to_device(in.V, order_of(o, 2));
  DeviceHeads<float> O(layout(order_of(o, 1), in.Q));  // a new array is NaN
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  launcher(Q, K, V, O, LSE);
  check_holds(Q, in.Q, K, in.K, V, in.V);
  return {taken_out(O), to_host(LSE)};
}

Result on_device(const Inputs& in, const Options& o) {
  return launched(in, o, [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
    batched_forward_cuda(Q, K, V, O, LSE, o.tile, o.causal, o.scale);
  });
}

Forward on_rung(std::int64_t rung) {
  return [rung](const Inputs& in, const Options& o) {
    return launched(in, o,
                    [&](const auto& Q, const auto& K, const auto& V, auto& O, auto& LSE) {
                      forward_rung(rung, Q, K, V, O, LSE, o.causal, o.scale);
                    });
  };
}

void on_device_and_rungs(const std::function<void(const Forward&)>& body) {
  body(on_device);
  for (std::int64_t rung = 1; rung <= kRungs; ++rung) {
    CAPTURE(rung);
    body(on_rung(rung));
  }
}

void check_exact(const Forward& forward, const Inputs& in, const Options& o) {
  check_outputs(forward(in, o),
                reference(in.Q, in.K, in.V, {.scale = o.scale, .causal = o.causal}));
}

Inputs random_batch(const BatchSize& s, std::uint64_t seed = 0) {
  return {random_heads<float>(s.B, s.H, s.Nq, s.d, seed, 0),
          random_heads<float>(s.B, s.Hkv, s.Nk, s.d, seed, 1),
          random_heads<float>(s.B, s.Hkv, s.Nk, s.d, seed, 2)};
}

// ---- bodies: forward

void ragged_sizes(const Forward& forward, std::initializer_list<Index> queries,
                  std::initializer_list<Index> keys) {
  each_size(queries, keys, [&](Index Nq, Index Nk) {
    const Inputs in = random_batch({1, 2, 1, Nq, Nk, 20});
    check_exact(forward, in, {.causal = true});
    check_exact(forward, in, {.causal = false});
  });
}

// K22 cudnn-frontend 493: B >= 2, H != N, Nq != Nk, and a K/V head for every group size.
void groups(const Forward& forward) {
  for (const BatchSize& s : {BatchSize{2, 6, 6, 10, 7, 8},
                             {2, 6, 3, 10, 7, 8},
                             {2, 6, 2, 7, 10, 8},
                             {2, 6, 1, 7, 10, 8},
                             {3, 4, 2, 4, 4, 4},
                             {1, 1, 1, 5, 5, 3}}) {
    CAPTURE(s);
    const Inputs in = random_batch(s, 1);
    check_exact(forward, in, {.causal = true});

    // the same as a K/V head of its own for every query head
    Inputs expanded{in.Q, Heads(s.B, s.H, s.Nk, s.d), Heads(s.B, s.H, s.Nk, s.d)};
    for (Index b = 0; b < s.B; ++b) {
      for (Index h = 0; h < s.H; ++h) {
        expanded.K.head(b, h) = in.K.head(b, h * s.Hkv / s.H);
        expanded.V.head(b, h) = in.V.head(b, h * s.Hkv / s.H);
      }
    }
    CHECK(same_outputs(forward(in, {.causal = true}), forward(expanded, {.causal = true})));
  }
}

// K07 FlagGems 5896 and 5235: each array has strides of its own, and they change no bit. H = N,
// too, where shapes alone do not show a mistake (K07 diffusers 14338).
void memory_orders(const Forward& forward) {
  for (const BatchSize& s :
       {BatchSize{2, 4, 2, 4, 4, 8}, {2, 4, 2, 21, 34, 12}, {2, 2, 1, 5, 9, 7}}) {
    const Inputs in = random_batch(s, 2);
    for (const bool causal : {false, true}) {
      CAPTURE(s);
      check_exact(forward, in, {.causal = causal});
      const Result first = forward(in, {.causal = causal});
      for (const int order : {1, 2}) {
        CAPTURE(order);
        CHECK(same_outputs(forward(in, {.causal = causal, .order = order}), first));
      }
    }
  }
}

// K05 sglang 1281 and mni-ml 39: no multiple of anything, and on both sides of what is built.
void head_dimensions(const Forward& forward) {
  for (const Index d : {1, 31, 33, 40, 63, 64, 65, 72, 80, 96, 100, 127, 128, 129, 200, 256}) {
    CAPTURE(d);
    check_exact(forward, random_batch({1, 2, 1, 5, 19, d}, 3),
                {.order = static_cast<int>(d % 3)});
  }
  Heads Q(1, 1, 1, 128, 1.0f), K(1, 1, 2, 128), V(1, 1, 2, 128, 10.0f);  // K05 triton 621
  K.head(0, 0).row(0).tail(64).setOnes();
  V.head(0, 0).row(1).setConstant(20);
  const Result r = forward({Q, K, V}, {.scale = 0.125});
  CHECK((as_rows(r.O).array() - 10.00335f).abs().maxCoeff<Eigen::PropagateNaN>() <= 1e-4f);
  CHECK(matches(r.LSE(0, 0), 8.000335, 1e-4));
}

void scales(const Forward& forward) {
  const Inputs in = random_batch({1, 2, 1, 9, 21, 12}, 4);
  for (const double scale : {0.0, 1.0, -1.0, 0.01, 3.0}) {
    CAPTURE(scale);
    check_exact(forward, in, {.causal = true, .scale = scale});
  }
  CHECK_THROWS_WITH_AS(forward(in, {.scale = 1e300}),
                       "the scale must be finite in float32, found 1e+300",
                       std::invalid_argument);
}

void goldens_agree(const Forward& forward) {
  int cases = 0;
  for (const std::string set : {"gqa", "decoder"}) {
    for (const HeadsGolden& g : heads_goldens(set)) {
      CAPTURE(g.name);
      const Options o{
          .tile = {16, 32}, .causal = g.causal, .scale = g.scale, .order = ++cases % 3};
      check_outputs(forward({g.Q, g.K, g.V}, o), g);
    }
  }
  CHECK(cases >= 10);
}

// K01, K02, K07, K08, K15, K20: what rows see, and what they make of it.
void reported_cases(const Forward& forward) {
  const auto check = [&](const char* report, const std::vector<float>& q,
                         const std::vector<float>& k, const std::vector<float>& v,
                         const std::vector<double>& O, const std::vector<double>& LSE,
                         bool causal = true, double scale = 1) {
    CAPTURE(report);
    const Result r = forward({one_head(q), one_head(k), one_head(v)}, {{2, 2}, causal, scale});
    check_close(r.O, doubles(O), kFloat32);
    check_close(r.LSE, doubles(LSE).transpose(), kFloat32);
  };
  const std::vector<float> two{0, 0}, five{0, 0, 0, 0, 0};
  const double inf = kInf<double>, ln2 = std::log(2.0), ln4 = std::log(4.0);
  check("K01 flashinfer 4452", {1, 1, 1}, {1}, {5}, {0, 0, 5}, {-inf, -inf, 1});
  check("K01 flashinfer 4267", {-1}, {60000, 60001}, {1, 3}, {1.537883}, {-59999.6867});
  check("K01 flashinfer 4450", {-1}, {3e38f, 3e38f}, {1, 3}, {2}, {-3e38});
  check("K01 lattice 373", {-20000, 0}, {1, 0}, {1, 100}, {1, 50.5}, {-20000, ln2});
  check("K02 flash-attention 282", two, five, {0, 1, 2, 3, 4}, {1.5, 2}, {ln4, std::log(5.0)});
  check("K02 flash-attention 1778", five, two, {1, 3}, {0, 0, 0, 1, 2},
        {-inf, -inf, -inf, 0, ln2});
  check("K04 flashinfer 3716", {0}, {0, 0, 0}, {1, 2, 3}, {2}, {std::log(3.0)}, false);
  check("K08 pytorch 181645", {1}, {0, 1}, {0, 1}, {0.731059}, {1.313262}, false);
  check("K15 pytorch 121558", {133120}, {133120}, {1}, {1}, {4430233600.0}, false, 0.25);
  // rounded before the maximum is taken off: a fused multiply-add would leave e^211
  check("K15 aotriton 54", {133120}, {133120}, {1}, {1}, {5316280320.0}, false, 0.3);
  check("K15 flash-attention 1461", {5, 5, 5}, {1, 2, 3}, {3, 6, 9}, {3, 4.5, 6},
        {0, ln2, std::log(3.0)}, true, 0);
  check("K15 pytorch 105202", {1, 1}, {1, 2}, {3, 6}, {3, 3.806824}, {-1, -0.686738}, true, -1);
  check("K20 tilelang 1148", {1}, {200, 0}, {1, 2}, {1}, {200}, false);

  // and where the smaller scores are in another tile, whichever kernel it is
  std::vector<float> k(200, 0.0f), v(200, 2.0f);
  k[0] = 200;
  v[0] = 1;
  check("K20 tilelang 1148", {1}, k, v, {1}, {200}, false);

  // K07 FlagGems 5896: the mean of each head's own values
  Inputs in{Heads(1, 2, 3, 2), Heads(1, 2, 3, 2), Heads(1, 2, 3, 2)};
  for (std::size_t i = 0; i < 12; ++i) in.V.elements()[i] = static_cast<float>(i);
  const Result r = forward(in, {.order = 1});
  for (Index i = 0; i < 3; ++i) {
    check_close(r.O.head(0, 0).row(i), Matrix<double>{{2, 3}}, kFloat32);
    check_close(r.O.head(0, 1).row(i), Matrix<double>{{8, 9}}, kFloat32);
  }
}

// K03: nothing to do is no error, and no launch.
void empty_sizes(const Forward& forward) {
  for (const BatchSize& s : {BatchSize{0, 2, 1, 3, 4, 5},
                             {2, 0, 0, 3, 4, 5},
                             {2, 2, 1, 0, 4, 5},
                             {2, 2, 1, 3, 0, 5},
                             {0, 0, 0, 0, 0, 1}}) {
    const Result r = forward(random_batch(s), {.causal = true});
    CHECK(as_rows(r.O).isZero(0));
    CHECK((r.LSE.array() == -kInf<float>).all());
    CHECK(r.LSE.size() == s.B * s.H * s.Nq);
  }
  CHECK_THROWS_WITH_AS(forward(random_batch({0, 0, 0, 2, 3, 0}), {}),  // K03 pytorch 174939
                       "the head dimension d must be from 1 to 256, found 0",
                       std::invalid_argument);
}

// K13: NaN and infinity reach the rows that see them, in their own head, and no other, to the
// bit. 70 keys: for rung 3 a full tile and a partial one.
void nan_and_visibility(const Forward& forward) {
  const BatchSize s{1, 4, 2, 6, 70, 5};
  const Inputs in = random_batch(s, 5);
  const Options options{.tile = {4, 32}, .causal = true};
  const Result clean = forward(in, options);
  for (const Index j : {0, 33, 63, 64, 66, 69}) {
    CAPTURE(j);
    const Index seen_from = std::clamp<Index>(j - (s.Nk - s.Nq), 0, s.Nq);
    Inputs bad_K = in, bad_V = in;
    bad_K.K.head(0, 1)(j, 1) = NAN;
    bad_V.V.head(0, 1)(j, 1) = NAN;
    const Result by_K = forward(bad_K, options), by_V = forward(bad_V, options);
    CHECK(same_bits(by_V.LSE, clean.LSE));
    for (Index h = 0; h < s.H; ++h) {
      CAPTURE(h);
      const Index first = h < 2 ? s.Nq : seen_from, hit = s.Nq - first;  // heads 2 and 3 see it
      const auto O = clean.O.head(0, h);
      CHECK(same_bits(by_K.O.head(0, h).topRows(first), O.topRows(first)));
      CHECK(by_K.O.head(0, h).bottomRows(hit).array().isNaN().all());
      CHECK(same_bits(by_K.LSE.row(h).head(first), clean.LSE.row(h).head(first)));
      CHECK(by_K.LSE.row(h).tail(hit).array().isNaN().all());
      CHECK(same_bits(by_V.O.head(0, h).topRows(first), O.topRows(first)));
      CHECK(by_V.O.head(0, h).col(1).tail(hit).array().isNaN().all());
      CHECK(same_bits(by_V.O.head(0, h).col(0), O.col(0)));
    }
  }
  Inputs bad_Q = in;
  bad_Q.Q.head(0, 1)(2, 0) = NAN;
  Result by_Q = forward(bad_Q, options);
  CHECK(by_Q.O.head(0, 1).row(2).array().isNaN().all());
  CHECK(std::isnan(by_Q.LSE(1, 2)));
  by_Q.O.head(0, 1).row(2) = clean.O.head(0, 1).row(2);
  by_Q.LSE(1, 2) = clean.LSE(1, 2);
  CHECK(same_outputs(by_Q, clean));

  // a score of +inf makes its row NaN; a row of -inf has seen nothing
  const Result overflow =
      forward({one_head({3e38f}), one_head({2, 1}), one_head({1, 2})}, {{}, false, 1.0});
  CHECK((std::isnan(as_rows(overflow.O)(0, 0)) && std::isnan(overflow.LSE(0, 0))));
  const Result nothing =
      forward({one_head({1}), one_head({-kInf<float>, -kInf<float>}), one_head({1, 2})}, {});
  CHECK((as_rows(nothing.O)(0, 0) == 0 && nothing.LSE(0, 0) == -kInf<float>));
}

// K04 jax 27224, K16 ggml 13438 and xformers 1392: the same bits at every run. On a GPU at the
// reported size.
void repeatable(const Forward& forward) {
  const bool gpu = device_available() && !simulated();
  const Inputs in = random_batch({1, gpu ? 16 : 2, gpu ? 2 : 1, 129, 129, gpu ? 256 : 40}, 9);
  const Options o{.tile = {32, 32}, .causal = true};
  const Result first = forward(in, o);
  CHECK(as_rows(first.O).allFinite());
  for (int run = 0; run < (gpu ? 50 : 2); ++run) {
    forward({in.Q, in.V, in.K}, {.tile = {16, 16}, .scale = 0.1});
    CHECK(same_outputs(forward(in, o), first));
  }
}

void bad_arguments(const Forward& forward) {
  const auto message = [&](const BatchSize& q, const BatchSize& k, const BatchSize& v) {
    return message_of([&] {
      forward({random_batch(q).Q, random_batch(k).K, random_batch(v).V}, {});
    });
  };
  const BatchSize s{2, 4, 2, 3, 5, 6};
  CHECK(message(s, s, s) == "accepted");
  CHECK(message(s, {1, 4, 2, 3, 5, 6}, s) == "K must be [2, 2, 5, 6], found [1, 2, 5, 6]");
  CHECK(message(s, {2, 4, 2, 3, 5, 7}, s) == "K must be [2, 2, 5, 6], found [2, 2, 5, 7]");
  CHECK(message(s, s, {2, 4, 1, 3, 5, 6}) == "V must be [2, 2, 5, 6], found [2, 1, 5, 6]");
  // K05 native-sparse-attention 27: another size for V is refused
  CHECK(message(s, s, {2, 4, 2, 3, 5, 9}) == "V must be [2, 2, 5, 6], found [2, 2, 5, 9]");
  const BatchSize three{2, 4, 3, 3, 5, 6}, none{2, 4, 0, 3, 5, 6};
  const std::string groups =
      "the number of K/V heads must divide the number of query heads, found ";
  CHECK(message(s, three, three) == groups + "3 for 4");
  CHECK(message(s, none, none) == groups + "0 for 4");
  CHECK(message({1, 1, 1, 1, 1, 257}, {1, 1, 1, 1, 1, 257}, {1, 1, 1, 1, 1, 257}) ==
        "the head dimension d must be from 1 to 256, found 257");
}

// ---- bodies: backward

struct Gradients {
  Heads dQ, dK, dV;
};
struct OutputGradient {
  Heads dO;
  std::optional<Floats> dLSE = {};
};
using Backward = std::function<Gradients(const Inputs&, const OutputGradient&, const Options&)>;

Gradients backward_on_cpu(const Inputs& in, const OutputGradient& g, const Options& o) {
  const Result saved = on_cpu(in, {.causal = o.causal, .scale = o.scale});
  StridedHeads Q(in.Q, order_of(o, 0), o.order), K(in.K, order_of(o, 1)),
      V(in.V, order_of(o, 2)), O(saved.O, order_of(o, 1)), dO(g.dO, order_of(o, 2), o.order);
  StridedHeads dQ(nan_like(in.Q), order_of(o, 1)), dK(nan_like(in.K), order_of(o, 2)),
      dV(nan_like(in.V), order_of(o, 0), 1);
  Floats delta = Floats::Constant(saved.LSE.rows(), saved.LSE.cols(), NAN);
  batched_backward_cpu<float>(Q.view(), K.view(), V.view(), O.view(), saved.LSE, dO.view(),
                              delta, dQ.view(), dK.view(), dV.view(), o.tile, o.causal, o.scale,
                              g.dLSE ? &*g.dLSE : nullptr);
  check_holds(dO, g.dO, Q, in.Q);
  return {taken_out(dQ), taken_out(dK), taken_out(dV)};
}

Gradients backward_on_device(const Inputs& in, const OutputGradient& g, const Options& o) {
  const Result saved = on_device(in, {.causal = o.causal, .scale = o.scale});
  const auto put = [&](const Heads& heads, int which) {
    return to_device(heads, order_of(o, which));
  };
  const auto Q = put(in.Q, 0), K = put(in.K, 1), V = put(in.V, 2), O = put(saved.O, 1),
             dO = put(g.dO, 2);
  DeviceHeads<float> dQ(layout(order_of(o, 1), in.Q)), dK(layout(order_of(o, 2), in.K)),
      dV(layout(order_of(o, 0), in.V));
  const auto dLSE = g.dLSE ? to_device(*g.dLSE) : DeviceMatrix<float>();
  DeviceMatrix<float> delta(saved.LSE.rows(), saved.LSE.cols());
  batched_backward_cuda(Q, K, V, O, to_device(saved.LSE), dO, delta, dQ, dK, dV, o.tile,
                        o.causal, o.scale, g.dLSE ? &dLSE : nullptr);
  check_holds(dO, g.dO);
  return {taken_out(dQ), taken_out(dK), taken_out(dV)};
}

void check_exact_gradients(const Backward& backward, const Inputs& in, const OutputGradient& g,
                           const Options& o) {
  const Matrix<double> dLSE = g.dLSE ? g.dLSE->cast<double>().eval() : Matrix<double>();
  check_gradients(
      backward(in, g, o),
      reference_gradients(in.Q, in.K, in.V, g.dO, {.scale = o.scale, .causal = o.causal},
                          g.dLSE ? &dLSE : nullptr));
}
OutputGradient random_gradient(const BatchSize& s, bool with_dLSE) {
  OutputGradient g{random_heads<float>(s.B, s.H, s.Nq, s.d, 77, 0), {}};
  if (with_dLSE) g.dLSE = random_matrix<float>(s.B * s.H, s.Nq, 78, 0);
  return g;
}

void gradients_of_batches(const Backward& backward) {
  for (const BatchSize& s : {BatchSize{2, 6, 6, 10, 7, 8},
                             {2, 6, 3, 7, 10, 8},
                             {2, 6, 2, 10, 7, 5},
                             {2, 6, 1, 7, 10, 8},
                             {3, 4, 2, 4, 4, 4},
                             {1, 1, 1, 1, 1, 1},
                             {1, 2, 1, 17, 33, 20},
                             {1, 2, 1, 33, 17, 20}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(s);
      CAPTURE(causal);
      const Inputs in = random_batch(s, 6);
      const OutputGradient g = random_gradient(s, causal);
      check_exact_gradients(backward, in, g, {.causal = causal});
      check_exact_gradients(backward, in, g, {.tile = {3, 5}, .causal = causal, .scale = -0.4});
      const Gradients first = backward(in, g, {.causal = causal});
      for (const int order : {1, 2}) {  // K06 flash-attention 2611: dO has strides of its own
        CHECK(same_gradients(backward(in, g, {.causal = causal, .order = order}), first));
      }
    }
  }
}

void gradient_goldens_agree(const Backward& backward) {
  int cases = 0;
  for (const std::string set : {"gqa", "decoder"}) {
    for (const HeadsGolden& g : heads_goldens(set)) {
      CAPTURE(g.name);
      const Options o{
          .tile = {16, 32}, .causal = g.causal, .scale = g.scale, .order = ++cases % 3};
      check_gradients(backward({g.Q, g.K, g.V}, {g.dO, g.dLSE}, o), g);
    }
  }
  CHECK(cases >= 10);
}

void reported_gradients(const Backward& backward) {
  const auto check = [](const Gradients& g, const std::vector<double>& dQ,
                        const std::vector<double>& dK, const std::vector<double>& dV) {
    check_close(g.dQ, doubles(dQ), kFloat32);
    check_close(g.dK, doubles(dK), kFloat32);
    check_close(g.dV, doubles(dV), kFloat32);
  };
  {  // K09 levanter 449: the sum over the group
    Inputs in{Heads(1, 2, 1, 1), one_head({0, 1}), one_head({0, 1})};
    in.Q.elements() = {1, 2};
    check(backward(in, {Heads(1, 2, 1, 1, 1.0f)}, {.scale = 1.0}), {0.196612, 0.104994},
          {-0.406599, 0.406599}, {0.388144, 1.611856});
  }
  // K09 flash-attention 443: rows that see nothing
  check(backward({one_head({1, 1, 1, 1}), one_head({1, 2}), one_head({1, 3})},
                 {one_head({NAN, kInf<float>, 1, 1})}, {.causal = true, .scale = 1.0}),
        {0, 0, 0, 0.393224}, {-0.393224, 0.393224}, {1.268941, 0.731059});
  // K08 flash-attention 1817: a loss of LSE alone
  check(backward({one_head({1}), one_head({0, 1}), one_head({0, 1})},
                 {one_head({0}), Floats::Ones(1, 1)}, {.scale = 1.0}),
        {0.731059}, {0.268941, 0.731059}, {0, 0});
  {  // a row whose scores are all -inf has seen nothing
    const float inf = kInf<float>;
    const Gradients g = backward({one_head({1}), one_head({-inf, -inf}), one_head({1, 2})},
                                 {one_head({NAN})}, {});
    for (const Heads* heads : {&g.dQ, &g.dK, &g.dV}) CHECK(as_rows(*heads).isZero(0));
  }
  // K03 flash-attention 2421: outputs are overwritten even where there is no work
  for (const BatchSize& s :
       {BatchSize{2, 2, 1, 0, 3, 4}, {2, 2, 1, 3, 0, 4}, {0, 2, 1, 3, 3, 4}}) {
    const Gradients g = backward(random_batch(s), random_gradient(s, false), {});
    CHECK(as_rows(g.dQ).isZero(0));
    CHECK(as_rows(g.dK).isZero(0));
    CHECK(as_rows(g.dV).isZero(0));
  }
  {  // K05 mni-ml 39: every channel has a gradient
    const Inputs in{Heads(1, 1, 2, 100), Heads(1, 1, 3, 100), Heads(1, 1, 3, 100, 1.0f)};
    CHECK((as_rows(backward(in, {Heads(1, 1, 2, 100, 1.0f)}, {}).dV).array() != 0).all());
  }
  {  // K19 TransformerEngine 3216: outlier channels and a common offset, two batches, d = 256
    const BatchSize s{2, 4, 1, 9, 9, 256};
    Inputs in = random_batch(s, 8);
    for (Heads* heads : {&in.Q, &in.K}) {
      for (std::size_t e = 0; e < heads->elements().size(); ++e) {
        float& x = heads->elements()[e];
        x = e % 64 == 3 ? 50 * x : x + 0.5f;
      }
    }
    check_exact_gradients(backward, in, random_gradient(s, false),
                          {.causal = true, .scale = 0.01});
  }
}

// A NaN stays with its row, the keys that the row sees, and its group.
void gradients_of_nan(const Backward& backward) {
  const BatchSize s{1, 4, 2, 5, 7, 3};
  const Inputs in = random_batch(s, 12);
  OutputGradient g = random_gradient(s, false);
  const Options o{.causal = true};
  const Gradients clean = backward(in, g, o);
  g.dO.head(0, 1)(1, 2) = NAN;  // sees the keys up to 3 of K/V head 0
  const Gradients bad = backward(in, g, o);
  CHECK(bad.dQ.head(0, 1).row(1).array().isNaN().all());
  CHECK(bad.dK.head(0, 0).topRows(4).array().isNaN().all());
  CHECK(bad.dV.head(0, 0).col(2).head(4).array().isNaN().all());
  CHECK(same_bits(bad.dK.head(0, 0).bottomRows(3), clean.dK.head(0, 0).bottomRows(3)));
  CHECK(same_bits(bad.dV.head(0, 0).col(0), clean.dV.head(0, 0).col(0)));
  CHECK(same_bits(bad.dK.head(0, 1), clean.dK.head(0, 1)));
  for (const Index h : {0, 2, 3}) CHECK(same_bits(bad.dQ.head(0, h), clean.dQ.head(0, h)));
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention") {
  ragged_sizes(on_cpu, {0, 1, 7, 8, 9, 17}, {0, 1, 15, 16, 17, 33});
}
TEST_CASE("device: every ragged size agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device, {0, 1, 7, 8, 9, 17}, {0, 1, 15, 16, 17, 33});
}
TEST_CASE("device: rungs agree with naive attention at every ragged size") {
  if (!have_device()) return;
  for (std::int64_t rung = 1; rung <= kRungs; ++rung) {
    CAPTURE(rung);
    ragged_sizes(on_rung(rung), {0, 1, 127, 129}, {0, 1, 31, 33, 129});
    ragged_sizes(on_rung(rung), {2, 128, 257}, {32, 63, 65, 128});
  }
}

TEST_CASE("cpu: query heads share K/V heads in groups K22") { groups(on_cpu); }
TEST_CASE("device: query heads share K/V heads in groups K22") {
  if (have_device()) on_device_and_rungs(groups);
}

TEST_CASE("cpu: strides change no bit K07") { memory_orders(on_cpu); }
TEST_CASE("device: strides change no bit K07") {
  if (have_device()) on_device_and_rungs(memory_orders);
}

TEST_CASE("cpu: every head dimension agrees with naive attention K05") {
  head_dimensions(on_cpu);
}
TEST_CASE("device: every head dimension agrees with naive attention K05") {
  if (have_device()) on_device_and_rungs(head_dimensions);
}

TEST_CASE("cpu: any finite scale is right and others are refused") { scales(on_cpu); }
TEST_CASE("device: any finite scale is right and others are refused") {
  if (have_device()) on_device_and_rungs(scales);
}

TEST_CASE("cpu: PyTorch's float64 results are met with groups and in a decoder") {
  goldens_agree(on_cpu);
}
TEST_CASE("device: PyTorch's float64 results are met with groups and in a decoder") {
  if (have_device()) on_device_and_rungs(goldens_agree);
}

TEST_CASE("cpu: reported cases K01 K02 K07 K08 K15 K20") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K01 K02 K07 K08 K15 K20") {
  if (have_device()) on_device_and_rungs(reported_cases);
}

TEST_CASE("cpu: nothing to do is no error K03") { empty_sizes(on_cpu); }
TEST_CASE("device: nothing to do is no error K03") {
  if (have_device()) on_device_and_rungs(empty_sizes);
}

TEST_CASE("cpu: NaN reaches the rows that see it and no other K13") {
  nan_and_visibility(on_cpu);
}
TEST_CASE("device: NaN reaches the rows that see it and no other K13") {
  if (have_device()) on_device_and_rungs(nan_and_visibility);
}

TEST_CASE("cpu: the same bits at every run K04 K16") { repeatable(on_cpu); }
TEST_CASE("device: the same bits at every run K04 K16") {
  if (have_device()) on_device_and_rungs(repeatable);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) on_device_and_rungs(bad_arguments);
}

TEST_CASE("cpu: gradients of batches agree with naive attention K06") {
  gradients_of_batches(backward_on_cpu);
}
TEST_CASE("device: gradients of batches agree with naive attention K06") {
  if (have_device()) gradients_of_batches(backward_on_device);
}

TEST_CASE("cpu: PyTorch's float64 gradients are met with groups and in a decoder") {
  gradient_goldens_agree(backward_on_cpu);
}
TEST_CASE("device: PyTorch's float64 gradients are met with groups and in a decoder") {
  if (have_device()) gradient_goldens_agree(backward_on_device);
}

TEST_CASE("cpu: reported gradients K03 K05 K08 K09 K19") {
  reported_gradients(backward_on_cpu);
}
TEST_CASE("device: reported gradients K03 K05 K08 K09 K19") {
  if (have_device()) reported_gradients(backward_on_device);
}

TEST_CASE("cpu: NaN in a gradient stays with its row and group") {
  gradients_of_nan(backward_on_cpu);
}
TEST_CASE("device: NaN in a gradient stays with its row and group") {
  if (have_device()) gradients_of_nan(backward_on_device);
}

// ---- integers

TEST_CASE("cpu: offsets beyond 32 bits are right K06 errata E35") {
  // vllm-xpu-kernels 445: a block of a cache, the last that 32 bits reach and the next
  constexpr HeadsLayout cache{3000, 1, 1, 128, 1039680, 0, 128};
  CHECK(cache.offset(2065, 0, 0) == 2146939200);
  CHECK(cache.offset(2066, 0, 0) == 2147978880);
  CHECK(wrong::offset_32(cache, 2065, 0, 0) == 2146939200);
  CHECK(wrong::offset_32(cache, 2066, 0, 0) == -2146988416);
  // flash-attention 2611: a small view with a large row stride
  constexpr HeadsLayout view{1, 1, 225305, 64, 0, 0, 9728};
  CHECK(view.offset(0, 0, 225304) == 2191757312);
  CHECK(wrong::offset_32(view, 0, 0, 225304) == -2103209984);
  // flash-attention 407: elements below and beyond 2^31
  CHECK(layout_extent(bhnd_layout(1600, 729, 16, 72)) == 1343692800);
  CHECK(layout_extent(bhnd_layout(2560, 729, 16, 72)) == 2149908480);
  // E35: batch 4 of 32 heads of 131072 tokens
  constexpr HeadsLayout large = bhnd_layout(5, 32, 131072, 128);
  CHECK(large.offset(4, 0, 0) == 2147483648);
  CHECK(wrong::offset_32(large, 4, 0, 0) == -2147483648);
  CHECK(bnhd_layout(5, 32, 131072, 128).offset(4, 31, 131071) ==
        4 * 32 * 131072LL * 128 + 131071LL * 4096 + 3968);
}

TEST_CASE("cpu: every tile of every head has its turn and the last tiles come first") {
  for (const BatchSize& s :
       {BatchSize{1, 1, 1, 1, 0, 0}, {2, 3, 1, 4, 0, 0}, {5, 1, 1, 7, 0, 0}}) {
    const Index tiles = s.Nq;
    std::set<std::tuple<Index, Index, Index>> seen;
    Index before = tiles - 1;
    for (Index index = 0; index < s.B * s.H * tiles; ++index) {
      const TilePlace at = tile_place(index, tiles, s.B, s.H);
      CHECK(
          (at.b >= 0 && at.b < s.B && at.h >= 0 && at.h < s.H && at.i >= 0 && at.i <= before));
      before = at.i;
      seen.insert({at.b, at.h, at.i});
    }
    CHECK(static_cast<Index>(seen.size()) == s.B * s.H * tiles);
  }
  // neighbours are heads, not tiles; and no product is of 32 bits
  CHECK(tile_place(1, 2, 2, 3).h == 1);
  CHECK(tile_place(3, 2, 2, 3).b == 1);
  CHECK(tile_place(99'999'999'999, 1, 100'000, 1'000'000).b == 99'999);
}

TEST_CASE("cpu: groups are of neighbours") {
  const auto row = [](Index H, Index Hkv) {
    std::vector<Index> kv;
    for (Index h = 0; h < H; ++h) kv.push_back(kv_head(h, H, Hkv));
    return kv;
  };
  CHECK(row(6, 2) == std::vector<Index>{0, 0, 0, 1, 1, 1});
  CHECK(row(3, 3) == std::vector<Index>{0, 1, 2});
  CHECK(row(3, 1) == std::vector<Index>{0, 0, 0});
  // the other order is right at both ends, and wrong between
  CHECK(wrong::kv_head_interleaved(2, 3) == kv_head(2, 3, 3));
  CHECK(wrong::kv_head_interleaved(2, 1) == kv_head(2, 3, 1));
  CHECK(wrong::kv_head_interleaved(1, 2) != kv_head(1, 6, 2));
}

// ---- the CPU's own

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  const Inputs in = random_batch({2, 4, 2, 33, 65, 16}, 10);
  const auto Q = cast_heads<double>(in.Q), K = cast_heads<double>(in.K),
             V = cast_heads<double>(in.V);
  const auto dO = cast_heads<double>(random_heads<float>(2, 4, 33, 16, 11, 0));
  const auto expected =
      reference_attention_heads(Q.view(), K.view(), V.view(), {.causal = true});
  HeadsArray<double> O(2, 4, 33, 16, NAN), dQ = O, dK(2, 2, 65, 16, NAN), dV = dK;
  Matrix<double> LSE(8, 33), delta(8, 33);
  batched_forward_cpu<double>(Q.view(), K.view(), V.view(), O.view(), LSE, {8, 64}, true);
  check_close(O, expected.O, kFloat64);
  check_close(LSE, expected.LSE, kFloat64);
  batched_backward_cpu<double>(Q.view(), K.view(), V.view(), O.view(), LSE, dO.view(), delta,
                               dQ.view(), dK.view(), dV.view(), {8, 64}, true);
  const auto gradients =
      reference_backward_heads(Q.view(), K.view(), V.view(), dO.view(), {.causal = true});
  check_close(dQ, gradients.dQ, {1e-12, 1e-11});
  check_close(dK, gradients.dK, {1e-12, 1e-11});
  check_close(dV, gradients.dV, {1e-12, 1e-11});
}

TEST_CASE("cpu: outputs and gradients of other shapes are named") {
  const Heads Q(1, 2, 3, 4), K(1, 1, 5, 4), dO(1, 2, 3, 4);
  Heads O = Q, narrow(1, 2, 3, 3), dQ = Q, dK = K, dV = K;
  Floats LSE(2, 3), flat(1, 6), delta(2, 3);
  const auto forward = [&](Heads& out, Floats& statistics) {
    batched_forward_cpu<float>(Q.view(), K.view(), K.view(), out.view(), statistics);
  };
  CHECK(message_of([&] { forward(narrow, LSE); }) ==
        "O must be [1, 2, 3, 4], found [1, 2, 3, 3]");
  CHECK(message_of([&] { forward(O, flat); }) == "LSE must be [2, 3], found [1, 6]");
  const auto backward = [&](const Heads& gradient, Heads& out, Floats& D, const Floats* dLSE) {
    return message_of([&] {
      batched_backward_cpu<float>(Q.view(), K.view(), K.view(), O.view(), LSE, gradient.view(),
                                  D, out.view(), dK.view(), dV.view(), {}, false, {}, dLSE);
    });
  };
  CHECK(backward(K, dQ, delta, nullptr) == "dO must be [1, 2, 3, 4], found [1, 1, 5, 4]");
  CHECK(backward(dO, dK, delta, nullptr) == "dQ must be [1, 2, 3, 4], found [1, 1, 5, 4]");
  CHECK(backward(dO, dQ, flat, nullptr) == "delta must be [2, 3], found [1, 6]");
  CHECK(backward(dO, dQ, delta, &flat) == "dLSE must be [2, 3], found [1, 6]");
  CHECK(message_of([&] {
          batched_forward_cpu<float>(Q.view(), K.view(), K.view(), O.view(), LSE, {0, 1});
        }) == "Br must be at least 1, found 0");
}

// ---- the device's own

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const BatchSize s{1, 2, 1, 20, 70, 10};
  const Inputs in = random_batch(s, 12);
  const OutputGradient g = random_gradient(s, true);
  const auto run = [&] {
    std::vector<Result> results;
    on_device_and_rungs([&](const Forward& f) { results.push_back(f(in, {.causal = true})); });
    const Gradients gradients = backward_on_device(in, g, {.causal = true});
    results.push_back({gradients.dQ, as_rows(gradients.dK)});
    results.push_back({gradients.dQ, as_rows(gradients.dV)});
    return results;
  };
  const auto first = run();
  const auto check = [&] {
    const auto again = run();
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_outputs(again[i], first[i]));
  };
  in_other_thread_orders(check, 1);
}

TEST_CASE("device: more heads than a grid has blocks along y or z K17") {
  if (!have_device()) return;
  Heads Q(65537, 1, 1, 1, 1.0f), V(65537, 1, 1, 1);
  for (std::size_t b = 0; b < V.elements().size(); ++b) V.elements()[b] = static_cast<float>(b);
  const auto device_Q = to_device(Q), device_V = to_device(V);
  DeviceHeads<float> O(65537, 1, 1, 1);
  DeviceMatrix<float> LSE(65537, 1);
  forward_rung(1, device_Q, device_Q, device_V, O, LSE, false, 1.0);
  CHECK(to_host(O).elements() == V.elements());
  CHECK((to_host(LSE).array() == 1).all());
}

TEST_CASE("device: what a kernel is not made for is refused with the limit K17") {
  if (!have_device()) return;
  const Inputs in = random_batch({1, 1, 1, 2, 2, 256});
  CHECK(message_of([&] {
          on_device(in, {.tile = {64, 64}});
        }) == does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552));
  CHECK(message_of([&] {
          backward_on_device(in, {in.Q}, {.tile = {64, 64}});
        }) == does_not_fit("backward tiles of Br = 64, Bc = 64 with d = 256",
                           key_tile_shared_bytes({64, 64}, 256)));
  for (const std::int64_t rung : {0, 4, -1}) {
    CHECK(message_of([&] { on_rung(rung)(in, {}); }) ==
          "the rung must be from 1 to 3, found " + std::to_string(rung));
  }
}

TEST_CASE("device: kernels load and store no more than they must") {
  if (!have_device()) return;
  const Index B = 2, H = 4, Nq = 130, Nk = 130, d = 8;
  const Inputs in = random_batch({B, H, 2, Nq, Nk, d});
  const auto floats = [&](const Forward& forward, bool causal) -> std::optional<Traffic> {
    reset_device_traffic();
    forward(in, {.tile = {64, 64}, .causal = causal});
    return device_traffic();
  };
  // what a query tile of Br rows loads: its rows of Q, and the rows of K and V that it sees
  const auto reads = [&](Index Br, Index Bc, bool whole_tiles, bool causal) {
    Index sum = Nq * d;
    for (Index q = 0; q < Nq; q += Br) {
      const Index sees = causal ? std::min(q + Br, Nq) : Nk;
      sum += 2 * d * (whole_tiles ? std::min((sees + Bc - 1) / Bc * Bc, Nk) : sees);
    }
    return 4 * B * H * sum;
  };
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    const auto plain = floats(on_device, causal), rung1 = floats(on_rung(1), causal),
               rung2 = floats(on_rung(2), causal), rung3 = floats(on_rung(3), causal);
    if (!counted(plain)) return;
    CHECK(plain->read_bytes == reads(64, 64, true, causal));
    CHECK(rung1->read_bytes == reads(1, 1, false, causal));
    CHECK(rung2->read_bytes == reads(128, 32, true, causal));
    CHECK(rung3->read_bytes == reads(128, 64, false, causal));
    for (const auto& traffic : {plain, rung1, rung2, rung3}) {
      CHECK(traffic->written_bytes == 4 * B * H * (Nq * d + Nq));
    }
  }
}

// ---- the executable

namespace {

// Runs the executable on golden batches, and checks what it wrote.
void program_on_goldens(const std::string& device, const Arguments& more) {
  for (const HeadsGolden& g : heads_goldens("gqa")) {
    CAPTURE(g.name);
    const TemporaryFolder folder;
    const auto out = folder.path() / "out";
    Arguments arguments = joined(golden_inputs(g, {"q", "k", "v", "do"}), more);
    if (g.dLSE) arguments.insert(arguments.end(), {"--dlse", (g.folder / "dlse.npy").string()});
    run_on(device, arguments, out);
    check_outputs(Result{load_heads<float>(out, "o"), load_rows<float>(out, "lse")}, g);
    check_gradients(Gradients{load_heads<float>(out, "dq"), load_heads<float>(out, "dk"),
                              load_heads<float>(out, "dv")},
                    g);
    const auto shape = load_npy(out, "lse").shape;
    CHECK(shape == std::vector<std::int64_t>{g.Q.B(), g.Q.H(), g.Q.N()});
  }
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}), {"batch 4 begins at 2147483648. In 32 bits: -2147483648.",
                         "the group       -0.4066  0.4066     0.3881  1.6119"});
}

TEST_CASE("cpu: executable on goldens meets PyTorch") { program_on_goldens("cpu", {}); }
TEST_CASE("device: executable on goldens meets PyTorch") {
  if (!have_device()) return;
  program_on_goldens(device_kind(), {});
  program_on_goldens(device_kind(), {"--rung", "3"});
}

TEST_CASE("cpu: executable takes one head and computes f8 in float64") {
  const TemporaryFolder folder;
  const auto Q = random_matrix<double>(7, 3, 0, 0), K = random_matrix<double>(5, 3, 0, 1),
             V = random_matrix<double>(5, 3, 0, 2), dO = random_matrix<double>(7, 3, 0, 3);
  const auto out = folder.path() / "out";
  const Arguments inputs = put_inputs(
      folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}, {"do", to_npy(dO)}});
  const ProgramResult r =
      run(inputs, {"--causal", "--scale", "-0.7", "--out", out.string(), "--json"});
  CAPTURE(r.err);
  REQUIRE(r.exit_code == 0);
  CHECK(contains(r.out, "\"empty_rows\":2"));
  const auto expected = reference_attention(Q, K, V, {.scale = -0.7, .causal = true});
  const auto gradients = reference_backward(Q, K, V, dO, {.scale = -0.7, .causal = true});
  check_close(load_matrix<double>(out, "o"), expected.O, kFloat64);
  check_close(load_vector<double>(out, "lse"), expected.LSE, kFloat64);
  check_close(load_matrix<double>(out, "dk"), gradients.dK, {1e-12, 1e-11});
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const TemporaryFolder folder;
  const auto ones = [&](const std::string& name, Index B, Index H, Index N) {
    return put(folder, name, cli::heads_to_npy(Heads(B, H, N, 3, 1.0f), 4));
  };
  const std::string q = ones("q.npy", 1, 4, 2), k = ones("k.npy", 1, 2, 5),
                    k3 = ones("k3.npy", 1, 3, 5), kb = ones("kb.npy", 2, 2, 5),
                    flat = put(folder, "flat.npy", to_npy(Floats(Floats::Ones(2, 3)))),
                    dO8 = put(folder, "do8.npy",
                              to_npy(Matrix<double>(Matrix<double>::Ones(2, 3))));
  check_refused({"--q", q}, "--k");
  check_refused({"--q", q, "--k", k3, "--v", k3}, "found 3 for 4");
  check_refused({"--q", q, "--k", kb, "--v", kb}, "kb.npy: dimension 0 (B) is 2");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", k},
                "k.npy must be [1, 4, 2, 3], found [1, 2, 5, 3]");
  check_refused({"--q", q, "--k", k, "--v", k, "--do", flat},
                "flat.npy must be [1, 4, 2, 3], found [2, 3]");
  check_refused({"--q", flat, "--k", flat, "--v", flat, "--do", dO8},
                "do8.npy is f8, but q is f4");
  check_refused({"--q", q, "--k", k, "--v", k, "--dlse", q}, "--dlse goes with --do");
  check_refused({"--heads", "4", "--kv-heads", "3"}, "found 3 for 4");
  check_refused({"--n", "4", "--dtype", "bf16"}, "--dtype");
  check_refused({"--n", "4", "--rung", "1"}, "--rung chooses a kernel");
  check_refused({"--n", "4", "--rung", "4"}, "--rung");
  check_refused({"--n", "4", "--rung", "3", "--br", "8"}, "--br");
  check_refused({"--device", other_device(), "--n", "4"}, other_device());
}

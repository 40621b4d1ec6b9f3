// Chapter 12: attention with dropout, forward and backward, on the CPU and on the device,
// against naive attention in float64 with the mask given.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include <doctest/doctest.h>

#include <functional>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/12_dropout/dropout_backward.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"
#include "chapters/12_dropout/wrong_versions.hpp"
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

using Bytes = HeadsArray<std::uint8_t>;

struct Options {
  Dropout dropout = {};
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
  const Bytes* mask = nullptr;
  Order order = Order::bhnd;  // of all heads in memory
};
template <class T>
struct InputsOf {
  HeadsArray<T> Q, K, V, dO;
};
template <class T>
struct ForwardOf {
  HeadsArray<T> O;
  Matrix<T> LSE;
};
template <class T>
struct GradientsOf {
  HeadsArray<T> dQ, dK, dV;
};
using Inputs = InputsOf<float>;
using Forward = ForwardOf<float>;
using Gradients = GradientsOf<float>;

// What a device can do, for bodies that run on both. Outputs start as NaN, and inputs must come
// back unchanged.
struct Device {
  std::function<Forward(const Inputs&, const Options&)> forward;
  std::function<Gradients(const Inputs&, const Forward&, const Options&)> backward;
  std::function<Bytes(Index B, Index H, Index Nq, Index Nk, const Dropout&)> mask;
};

template <class T>
ForwardOf<T> forward_cpu(const InputsOf<T>& x, const Options& o) {
  const StridedHeads Q(x.Q, o.order), K(x.K, o.order), V(x.V, o.order);
  const StridedHeads mask(o.mask ? *o.mask : Bytes(), o.order);
  StridedHeads O(nan_like(x.Q), o.order);
  Matrix<T> LSE = Matrix<T>::Constant(x.Q.B() * x.Q.H(), x.Q.N(), T(NAN));
  const HeadsView<const std::uint8_t> mask_view = mask.view();
  dropout_forward_cpu<T>(Q.view(), K.view(), V.view(), O.view(), LSE, o.dropout, o.tile,
                         o.causal, o.scale, o.mask ? &mask_view : nullptr);
  check_holds(Q, x.Q, K, x.K, V, x.V);
  return {taken_out(O), LSE};
}

template <class T>
GradientsOf<T> backward_cpu(const InputsOf<T>& x, const ForwardOf<T>& y, const Options& o) {
  const StridedHeads Q(x.Q, o.order), K(x.K, o.order), V(x.V, o.order), dO(x.dO, o.order),
      O(y.O, o.order);
  const StridedHeads mask(o.mask ? *o.mask : Bytes(), o.order);
  const HeadsView<const std::uint8_t> mask_view = mask.view();
  StridedHeads dQ(nan_like(x.Q), o.order), dK(nan_like(x.K), o.order), dV = dK;
  Matrix<T> delta = Matrix<T>::Constant(x.Q.B() * x.Q.H(), x.Q.N(), T(NAN));
  const Matrix<T> LSE = y.LSE;
  dropout_backward_cpu<T>(Q.view(), K.view(), V.view(), O.view(), LSE, dO.view(), delta,
                          dQ.view(), dK.view(), dV.view(), o.dropout, o.tile, o.causal, o.scale,
                          o.mask ? &mask_view : nullptr);
  check_holds(Q, x.Q, K, x.K, V, x.V, O, y.O, dO, x.dO);
  CHECK(same_bits(LSE, y.LSE));
  return {taken_out(dQ), taken_out(dK), taken_out(dV)};
}

Bytes mask_cpu(Index B, Index H, Index Nq, Index Nk, const Dropout& dropout) {
  Bytes kept(B, H, Nq, Nk, 77);
  dropout_mask_cpu(kept.view(), dropout);
  return kept;
}

Forward forward_device(const Inputs& x, const Options& o) {
  const auto Q = to_device(x.Q, o.order), K = to_device(x.K, o.order),
             V = to_device(x.V, o.order);
  const auto mask = to_device(o.mask ? *o.mask : Bytes(), o.order);
  DeviceHeads<float> O(Q.layout());  // new arrays are NaN
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  dropout_forward_cuda(Q, K, V, O, LSE, o.dropout, o.tile, o.causal, o.scale,
                       o.mask ? &mask : nullptr);
  check_holds(Q, x.Q, K, x.K, V, x.V);
  return {taken_out(O), to_host(LSE)};
}

Gradients backward_device(const Inputs& x, const Forward& y, const Options& o) {
  const auto Q = to_device(x.Q, o.order), K = to_device(x.K, o.order),
             V = to_device(x.V, o.order), dO = to_device(x.dO, o.order),
             O = to_device(y.O, o.order);
  const auto mask = to_device(o.mask ? *o.mask : Bytes(), o.order);
  const auto LSE = to_device(y.LSE);
  DeviceHeads<float> dQ(Q.layout()), dK(K.layout()), dV(V.layout());
  DeviceMatrix<float> delta(LSE.rows(), LSE.cols());
  dropout_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, o.dropout, o.tile, o.causal,
                        o.scale, o.mask ? &mask : nullptr);
  check_holds(Q, x.Q, K, x.K, V, x.V, O, y.O, dO, x.dO, LSE, y.LSE);
  return {taken_out(dQ), taken_out(dK), taken_out(dV)};
}

Bytes mask_device(Index B, Index H, Index Nq, Index Nk, const Dropout& dropout) {
  DeviceHeads<std::uint8_t> kept(B, H, Nq, Nk);
  dropout_mask_cuda(kept, dropout);
  return to_host(kept);
}

const Device kCpu{forward_cpu<float>, backward_cpu<float>, mask_cpu};
const Device kDevice{forward_device, backward_device, mask_device};

// The contract, one weight at a time.
bool keeps(const Dropout& dropout, Index head, Index row, Index column) {
  const auto word = [](Index i) { return static_cast<std::uint32_t>(i); };
  const PhiloxWords numbers =
      philox({{word(column / 4), word(row), word(head), word(dropout.offset)}}, dropout.seed);
  return std::uint64_t{numbers.word[column % 4]} >=
         static_cast<std::uint64_t>(std::llround(dropout.p * 4294967296.0));
}

Bytes expected_mask(Index B, Index H, Index Nq, Index Nk, const Dropout& dropout) {
  Bytes kept(B, H, Nq, Nk);
  for (Index head = 0; head < B * H; ++head) {
    for (Index i = 0; i < Nq; ++i) {
      for (Index j = 0; j < Nk; ++j) {
        kept.head(head / H, head % H)(i, j) = keeps(dropout, head, i, j);
      }
    }
  }
  return kept;
}

// ---- the oracle

ReferenceHeadsOptions exact_options(const Inputs& x, const Options& o) {
  ReferenceHeadsOptions exact{.scale = o.scale, .causal = o.causal, .dropout = o.dropout.p};
  const Index B = x.Q.B(), H = x.Q.H();
  const Bytes all = o.mask ? *o.mask : expected_mask(B, H, x.Q.N(), x.K.N(), o.dropout);
  for (Index head = 0; head < B * H; ++head) {
    exact.masks.emplace_back(all.head(head / H, head % H));
  }
  return exact;
}

void check_against_reference(const Device& device, const Inputs& x, const Options& o,
                             bool nan_expected = false) {
  const auto exact = exact_options(x, o);
  const Forward y = device.forward(x, o);
  check_outputs(y, reference(x.Q, x.K, x.V, exact), kFloat32, nan_expected);
  check_gradients(device.backward(x, y, o), reference_gradients(x.Q, x.K, x.V, x.dO, exact),
                  kFloat32Gradient, nan_expected);
}

// Masks of heads, (Nq, Nk) each, as one array.
Bytes stored_mask(const std::vector<Matrix<std::uint8_t>>& masks, Index B) {
  const Index H = static_cast<Index>(masks.size()) / B;
  Bytes all(B, H, masks[0].rows(), masks[0].cols());
  for (Index head = 0; head < B * H; ++head) {
    all.head(head / H, head % H) = masks[static_cast<std::size_t>(head)];
  }
  return all;
}

// ---- inputs

template <class T = float>
InputsOf<T> random_batch(const BatchSize& s, std::uint64_t seed = 0) {
  return {random_heads<T>(s.B, s.H, s.Nq, s.d, seed, 0),
          random_heads<T>(s.B, s.Hkv, s.Nk, s.d, seed, 1),
          random_heads<T>(s.B, s.Hkv, s.Nk, s.d, seed, 2),
          random_heads<T>(s.B, s.H, s.Nq, s.d, seed + 77, 0)};
}

Bytes mask_of(Index Nq, Index Nk, const std::vector<std::uint8_t>& kept) {
  Bytes mask(1, 1, Nq, Nk);
  mask.elements() = kept;
  return mask;
}
// One query of 1 against keys that are their own scores, and dO = 1.
Inputs one_query(const std::vector<float>& scores, const std::vector<float>& values) {
  return {one_head({1}), one_head(scores), one_head(values), one_head({1})};
}
void check_values(const Heads& actual, const std::vector<double>& expected) {
  check_close(actual, doubles(expected), kFloat32);
}

// ---- the mask

void mask_of_the_contract(const Device& device) {
  for (const Dropout dropout : {Dropout{0.1, 0, 0},
                                {0.5, 1, 0},
                                {0.9, 0xfedcba9876543210, 5},
                                {0.3, 7, 0xffffffff},
                                {0, 3, 1}}) {
    for (const Index Nk : {0, 1, 3, 4, 5, 8, 33}) {
      CAPTURE(dropout.p);
      CAPTURE(Nk);
      CHECK(device.mask(2, 3, 7, Nk, dropout).elements() ==
            expected_mask(2, 3, 7, Nk, dropout).elements());
    }
  }
  CHECK(device.mask(0, 3, 7, 5, {.p = 0.5}).elements().empty());
  CHECK(device.mask(2, 3, 0, 5, {.p = 0.5}).elements().empty());
}

// The mask that a pass really applies. With Q = 0 all weights are 1/Nk, and with values (or
// gradients) of 1 at a place of their own each weight comes out at a place of its own.
Bytes mask_of_forward(const Device& device, Index Nq, Index Nk, const Options& o) {
  Inputs x{Heads(2, 2, Nq, Nk), Heads(2, 1, Nk, Nk), Heads(2, 1, Nk, Nk), {}};
  for (Index b = 0; b < 2; ++b) x.V.head(b, 0).setIdentity();
  const Forward y = device.forward(x, o);
  Bytes kept(2, 2, Nq, Nk);
  std::transform(y.O.elements().begin(), y.O.elements().end(), kept.elements().begin(),
                 [](float weight) { return weight != 0; });
  return kept;
}

Bytes mask_of_backward(const Device& device, Index Nq, Index Nk, const Options& o) {
  const Inputs x{Heads(2, 2, Nq, Nq), Heads(2, 2, Nk, Nq), Heads(2, 2, Nk, Nq),
                 Heads(2, 2, Nq, Nq)};
  Inputs with_dO = x;
  for (Index head = 0; head < 4; ++head) with_dO.dO.head(head / 2, head % 2).setIdentity();
  const Gradients g = device.backward(with_dO, device.forward(x, o), o);
  Bytes kept(2, 2, Nq, Nk);
  for (Index head = 0; head < 4; ++head) {
    kept.head(head / 2, head % 2) =
        (g.dV.head(head / 2, head % 2).array() != 0).cast<std::uint8_t>().matrix().transpose();
  }
  return kept;
}

// K11 flash-attention 2439: whatever the tiles and threads are, a weight has the same bit.
void mask_of_every_tiling(const Device& device) {
  const Dropout dropout{.p = 0.4, .seed = 11, .offset = 2};
  const Index Nq = 19, Nk = 37;
  const Bytes all = expected_mask(2, 2, Nq, Nk, dropout);
  for (const bool causal : {false, true}) {
    Bytes seen = all;
    for (Index head = 0; head < 4 && causal; ++head) {
      auto one = seen.head(head / 2, head % 2);
      for (Index i = 0; i < Nq; ++i) one.row(i).tail(Nq - 1 - i).setZero();
    }
    for (const Tiling tile :
         {Tiling{1, 1}, {4, 8}, {5, 3}, {7, 13}, {2, 6}, {19, 37}, {64, 64}}) {
      CAPTURE(causal);
      CAPTURE(tile);
      const Options o{.dropout = dropout, .tile = tile, .causal = causal};
      CHECK(mask_of_forward(device, Nq, Nk, o).elements() == seen.elements());
      CHECK(mask_of_backward(device, Nq, Nk, o).elements() == seen.elements());
    }
  }
}

// ---- results

void ragged_sizes(const Device& device) {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
      check_against_reference(device, random_batch({1, 2, 1, Nq, Nk, 5}),
                              {.dropout = {.p = 0.3}, .tile = {4, 8}, .causal = causal});
    });
  }
  // no batch, no heads
  const Options o{.dropout = {.p = 0.3}};
  check_against_reference(device, random_batch({0, 2, 1, 3, 4, 5}), o);
  check_against_reference(device, random_batch({2, 0, 0, 3, 4, 5}), o);
}

void tile_shapes(const Device& device) {
  const Inputs x = random_batch({1, 2, 1, 19, 30, 6}, 1);
  for (const Tiling tile : {Tiling{1, 1}, {2, 3}, {8, 5}, {5, 8}, {32, 32}, {7, 100}}) {
    CAPTURE(tile);
    check_against_reference(device, x,
                            {.dropout = {.p = 0.25, .seed = 3}, .tile = tile, .causal = true});
  }
}

// Each batch and head has data and a mask of its own, each K/V head serves a group.
void grouped_heads(const Device& device) {
  for (const BatchSize size : {BatchSize{2, 6, 2, 9, 11, 8},
                               {2, 6, 3, 9, 11, 8},
                               {3, 4, 4, 1, 20, 7},
                               {1, 5, 1, 20, 9, 129}}) {
    CAPTURE(size);
    check_against_reference(
        device, random_batch(size, 2),
        {.dropout = {.p = 0.2, .seed = 9, .offset = 4}, .tile = {4, 8}, .causal = true});
  }
}

void scales_and_rates(const Device& device) {
  const Inputs x = random_batch({1, 2, 2, 13, 13, 12}, 3);
  for (const double scale : {0.0, 1.0, -0.7}) {
    CAPTURE(scale);
    check_against_reference(
        device, x, {.dropout = {.p = 0.5}, .tile = {4, 8}, .causal = true, .scale = scale});
  }
  for (const double p : {0.0, 1e-10, 0.01, 0.75, 0.99}) {
    CAPTURE(p);
    check_against_reference(device, x, {.dropout = {.p = p, .seed = 1}, .tile = {4, 8}});
  }
  // just below 1 nothing is kept, and 1/(1-p) = 2^53 is not infinite
  const Options all{.dropout = {.p = std::nextafter(1.0, 0.0)}, .tile = {4, 8}};
  check_against_reference(device, x, all);
  CHECK(as_rows(device.forward(x, all).O).isZero(0));
}

void goldens_agree(const Device& device) {
  for (const HeadsGolden& g : dropout_goldens()) {
    CAPTURE(g.name);
    const Bytes mask = stored_mask(g.masks, g.Q.B());
    const Inputs x{g.Q, g.K, g.V, g.dO};
    for (const Tiling tile : {Tiling{4, 8}, {16, 16}}) {
      const Options o{.dropout = {.p = g.dropout},
                      .tile = tile,
                      .causal = g.causal,
                      .scale = g.scale,
                      .mask = &mask};
      const Forward y = device.forward(x, o);
      check_outputs(y, g);
      check_gradients(device.backward(x, y, o), g);
    }
  }
}

// p = 0, and a stored mask of ones: the bits of chapter 05, whatever seed and offset are.
// (On the device `plain` computes a head.)
void nothing_dropped(const Device& device,
                     const std::function<Forward(const Inputs&, const Options&)>& plain) {
  for (const BatchSize size :
       {BatchSize{1, 1, 1, 21, 21, 16}, {1, 1, 1, 10, 33, 7}, {1, 1, 1, 33, 10, 5}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(size);
      CAPTURE(causal);
      const Inputs x = random_batch(size, 6);
      Bytes ones(1, 1, size.Nq, size.Nk, 1);
      const Options o{
          .dropout = {.p = 0, .seed = 5, .offset = 6}, .tile = {8, 12}, .causal = causal};
      Options with_ones = o;
      with_ones.mask = &ones;
      const Forward expected = plain(x, o);
      for (const Forward& y : {device.forward(x, o), device.forward(x, with_ones)}) {
        CHECK(same_outputs(y, expected));
      }
      CHECK(same_gradients(device.backward(x, expected, o),
                           device.backward(x, expected, with_ones)));
    }
  }
}

// E22: whether the mask is computed again or was stored makes no difference of a bit.
void stored_or_computed(const Device& device) {
  for (const bool causal : {false, true}) {
    const Inputs x = random_batch({2, 4, 2, 18, 23, 9}, 8);
    const Options computed{
        .dropout = {.p = 0.35, .seed = 77, .offset = 12}, .tile = {8, 6}, .causal = causal};
    const Bytes mask = device.mask(2, 4, 18, 23, computed.dropout);
    Options stored{.dropout = {.p = 0.35}, .tile = {8, 6}, .causal = causal, .mask = &mask};
    const Forward y = device.forward(x, computed), z = device.forward(x, stored);
    CHECK(same_outputs(y, z));
    CHECK(same_gradients(device.backward(x, y, computed), device.backward(x, y, stored)));
  }
}

// K10: the same bits at every run, with memory left over from other work.
void repeatable(const Device& device) {
  const Inputs x = random_batch({2, 4, 2, 20, 25, 9}, 9),
               other = random_batch({1, 3, 1, 30, 15, 20});
  const Options o{.dropout = {.p = 0.3, .seed = 1}, .tile = {8, 16}, .causal = true};
  const Forward first = device.forward(x, o);
  const Gradients gradients = device.backward(x, first, o);
  for (int run = 0; run < 3; ++run) {
    device.backward(other, device.forward(other, {.dropout = {.p = 0.5}}),
                    {.dropout = {.p = 0.5}});
    const Forward again = device.forward(x, o);
    CHECK(same_outputs(again, first));
    CHECK(same_gradients(device.backward(x, again, o), gradients));
  }
}

// ---- edges

// A row whose weights were all dropped is not a row without keys; a row without keys stays one.
void dropped_and_empty_rows(const Device& device) {
  const Inputs x{one_head({1, 1, 1}), one_head({2}), one_head({5}), one_head({1, 1, 1})};
  const Bytes none(1, 1, 3, 1, 0);
  const Options o{.dropout = {.p = 0.5}, .causal = true, .scale = 1.0, .mask = &none};
  const Forward y = device.forward(x, o);
  check_values(y.O, {0, 0, 0});
  CHECK(y.LSE(0, 0) == -kInf<float>);
  CHECK(y.LSE(0, 1) == -kInf<float>);
  CHECK(y.LSE(0, 2) == 2);  // K11 nki-samples 80 (a): its score, not -inf
  // NaN in what a row without keys brings along reaches nothing
  Inputs bad = x;
  bad.Q.elements()[0] = bad.dO.elements()[0] = bad.dO.elements()[1] = NAN;
  const Gradients g = device.backward(bad, device.forward(bad, o), o);
  check_values(g.dQ, {0, 0, 0});
  check_values(g.dK, {0});
  check_values(g.dV, {0});
}

// K13: NaN reaches what the contract says, dropped or not, and nothing else.
void nan_and_infinity(const Device& device) {
  const Options o{.dropout = {.p = 0.5, .seed = 4}, .tile = {2, 4}, .causal = true};
  const Inputs clean = random_batch({1, 2, 1, 7, 9, 3}, 12);
  const auto at = [](Heads& heads, Index row, Index column) -> float& {
    return heads.head(0, 0)(row, column);
  };
  for (const float bad : {NAN, kInf<float>}) {
    CAPTURE(bad);
    Inputs x = clean;
    at(x.Q, 3, 1) = bad;
    check_against_reference(device, x, o, true);
    x = clean;
    at(x.K, 7, 0) = bad;  // which rows 5 and 6 see
    check_against_reference(device, x, o, true);
    x = clean;
    at(x.V, 6, 2) = bad;
    check_against_reference(device, x, o, true);
    x = clean;
    at(x.dO, 2, 0) = bad;
    check_against_reference(device, x, o, true);
  }
}

// Heads in other orders and with gaps between their rows, in and out: not a bit changes.
void heads_anywhere(const Device& device) {
  const Inputs x = random_batch({2, 4, 2, 9, 13, 5}, 14);
  Options o{.dropout = {.p = 0.3, .seed = 2}, .tile = {4, 8}, .causal = true};
  const Forward y = device.forward(x, o);
  const Gradients g = device.backward(x, y, o);
  const Bytes mask = expected_mask(2, 4, 9, 13, o.dropout);
  for (const Order order : {Order::bnhd, Order::gaps}) {
    for (const Bytes* stored : {static_cast<const Bytes*>(nullptr), &mask}) {
      o.order = order;
      o.mask = stored;
      CHECK(same_outputs(device.forward(x, o), y));
      CHECK(same_gradients(device.backward(x, y, o), g));
    }
  }
}

void bad_arguments(const Device& device) {
  const Inputs x = random_batch({2, 4, 2, 3, 5, 8});
  const auto refused = [&](const std::string& message, const Inputs& bad, const Options& o) {
    CHECK(message_of([&] { device.forward(bad, o); }) == message);
    const Forward y{bad.Q, Floats(bad.Q.B() * bad.Q.H(), bad.Q.N())};
    CHECK(message_of([&] { device.backward(bad, y, o); }) == message);
  };
  const auto dropout = [](double p, std::int64_t offset = 0) {
    return Options{.dropout = {.p = p, .offset = offset}};
  };
  refused("dropout must be at least 0 and below 1, found 1", x, dropout(1));
  refused("dropout must be at least 0 and below 1, found -0.5", x, dropout(-0.5));
  refused("dropout must be at least 0 and below 1, found nan", x, dropout(std::nan("")));
  refused("the offset must be from 0 to 4294967295 for dropout, found -1", x, dropout(0.5, -1));
  refused("the offset must be from 0 to 4294967295 for dropout, found 4294967296", x,
          dropout(0.5, std::int64_t{1} << 32));
  refused("Br must be at least 1, found 0", x, {.tile = {0, 4}});
  refused("the scale must be finite in float32, found 1e+300", x, {.scale = 1e300});
  Inputs bad = x;
  bad.K = Heads(2, 2, 5, 9);
  refused("K must be [2, 2, 5, 8], found [2, 2, 5, 9]", bad, {});
  bad = x;
  bad.K = bad.V = Heads(2, 3, 5, 8);
  refused("the number of K/V heads must divide the number of query heads, found 3 for 4", bad,
          {});
  Bytes mask(2, 4, 3, 6);
  refused("the mask must be [2, 4, 3, 5], found [2, 4, 3, 6]", x, {.mask = &mask});

  const Forward y = device.forward(x, {});
  bad = x;
  bad.dO = Heads(2, 4, 4, 8);
  CHECK(message_of([&] { device.backward(bad, y, {}); }) ==
        "dO must be [2, 4, 3, 8], found [2, 4, 4, 8]");
  CHECK(message_of([&] { device.mask(1, 1, 2, 3, {.p = 1}); }) ==
        "dropout must be at least 0 and below 1, found 1");
}

// ---- reported cases

void reported_cases(const Device& device) {
  // K11 nki-samples 80 (b) and K09 nki-samples 81
  const Bytes outer = mask_of(1, 3, {1, 0, 1});
  const Inputs x = one_query({0, 1, 2}, {1, 2, 4});
  for (const Tiling tile : {Tiling{1, 1}, {4, 2}, {64, 64}}) {
    CAPTURE(tile);
    const Options o{.dropout = {.p = 0.5}, .tile = tile, .scale = 1.0, .mask = &outer};
    const Forward y = device.forward(x, o);
    check_values(y.O, {5.501989});
    CHECK(y.LSE(0, 0) == doctest::Approx(2.407606).epsilon(1e-6));
    const Gradients g = device.backward(x, y, o);
    check_values(g.dK, {-0.315286, -1.346493, 1.661779});  // dS, since the query is 1
    check_values(g.dV, {0.180061, 0, 1.330482});
    check_values(g.dQ, {1.977065});
  }
  const Bytes kept = mask_of(1, 1, {1}), dropped = mask_of(1, 1, {0});
  const Inputs three = one_query({2}, {3});
  {  // K11 apex 816: 1/(1-p), not 1/p or p, in both passes
    const Options o{.dropout = {.p = 0.25}, .scale = 1.0, .mask = &kept};
    const Forward y = device.forward(three, o);
    check_values(y.O, {4});
    check_values(device.backward(three, y, o).dV, {1.333333});
  }
  {  // K11 pytorch 33360, fairseq 351, flash-attention 93: what is left is not made to sum to 1
    check_values(device.forward(three, {.dropout = {.p = 0.5}, .mask = &kept}).O, {6});
    check_values(device.forward(three, {.dropout = {.p = 0.5}, .mask = &dropped}).O, {0});
  }
  // K09 levanter 449: a group's gradients are summed, here without dropout
  const auto heads = [](const std::vector<float>& values) {
    Heads two(1, 2, 1, 1);
    two.elements() = values;
    return two;
  };
  const Inputs group{heads({1, 2}), one_head({0, 1}), one_head({0, 1}), heads({1, 1})};
  const Options plain{.scale = 1.0};
  const Gradients g = device.backward(group, device.forward(group, plain), plain);
  check_values(g.dK, {-0.406599, 0.406599});
  check_values(g.dV, {0.388144, 1.611856});
  check_values(g.dQ, {0.196612, 0.104994});
  // K09 flash-attention 443 and 41: rows that see nothing, keys that nobody sees
  const Inputs long_queries{one_head({1, 1, 1, 1}), one_head({1, 2}), one_head({1, 3}),
                            one_head({1, 1, 1, 1})};
  const Options causal{.tile = {2, 1}, .causal = true, .scale = 1.0};
  const Gradients ragged =
      device.backward(long_queries, device.forward(long_queries, causal), causal);
  check_values(ragged.dQ, {0, 0, 0, 0.393224});
  check_values(ragged.dK, {-0.393224, 0.393224});
  check_values(ragged.dV, {1.268941, 0.731059});
}

// ---- errata

// E21: weights 0.25 and 0.75, values 1 and 0, all four masks of p = 0.5.
void mean_over_all_masks(const Device& device) {
  const Inputs x = one_query({0, std::log(3.0f)}, {1, 0});
  const double right[] = {0, 0.5, 0, 0.5}, notes[] = {NAN, 1, 0, 0.25};
  for (const int bits : {0, 1, 2, 3}) {
    CAPTURE(bits);
    const auto first = static_cast<std::uint8_t>(bits & 1),
               second = static_cast<std::uint8_t>(bits >> 1);
    const Bytes mask = mask_of(1, 2, {first, second});
    const Forward y =
        device.forward(x, {.dropout = {.p = 0.5}, .tile = {1, 1}, .scale = 1.0, .mask = &mask});
    check_values(y.O, {right[bits]});                  // on average 0.25
    CHECK(matches(y.LSE(0, 0), std::log(4.0), 1e-6));  // whatever the mask is
    const double wrong = wrong::dropout_before_the_sum(
        {{0, std::log(3.0)},
         {1, 0},
         {static_cast<double>(first), static_cast<double>(second)},
         0.5});
    CHECK(matches(wrong, notes[bits], 1e-12, true));
  }
}

// The mean over all 16 masks of a row, each with its probability, is the result without
// dropout; and so for dV.
void unbiased(const Device& device) {
  const double p = 0.3;
  Inputs x = random_batch({1, 1, 1, 1, 4, 2}, 15);
  const Forward plain = device.forward(x, {});
  const Gradients plain_gradients = device.backward(x, plain, {});
  Matrix<double> O = Matrix<double>::Zero(1, 2), dV = Matrix<double>::Zero(4, 2);
  for (unsigned bits = 0; bits < 16; ++bits) {
    Bytes mask(1, 1, 1, 4);
    double probability = 1;
    for (unsigned j = 0; j < 4; ++j) {
      mask.elements()[j] = bits >> j & 1;
      probability *= bits >> j & 1 ? 1 - p : p;
    }
    const Options o{.dropout = {.p = p}, .mask = &mask};
    const Forward y = device.forward(x, o);
    O += probability * as_rows(y.O).cast<double>();
    dV += probability * as_rows(device.backward(x, y, o).dV).cast<double>();
  }
  check_close(O, as_rows(plain.O), kFloat32);
  check_close(dV, as_rows(plain_gradients.dV), kFloat32Gradient);
}

// Every body on the CPU, and on the device if there is one.
void on_device(const std::function<void(const Device&)>& body) {
  if (have_device()) body(kDevice);
}

}  // namespace

TEST_CASE("cpu: a weight is kept as the contract says") { mask_of_the_contract(kCpu); }
TEST_CASE("device: a weight is kept as the contract says") { on_device(mask_of_the_contract); }

TEST_CASE("cpu: K11 flash-attention 2439 any tiles one mask") { mask_of_every_tiling(kCpu); }
TEST_CASE("device: K11 flash-attention 2439 any tiles one mask") {
  on_device(mask_of_every_tiling);
}

TEST_CASE("cpu: every ragged size agrees with naive attention") { ragged_sizes(kCpu); }
TEST_CASE("device: every ragged size agrees with naive attention") { on_device(ragged_sizes); }

TEST_CASE("cpu: the result does not depend on the tile shape") { tile_shapes(kCpu); }
TEST_CASE("device: the result does not depend on the tile shape") { on_device(tile_shapes); }

TEST_CASE("cpu: heads that share keys and values K09") { grouped_heads(kCpu); }
TEST_CASE("device: heads that share keys and values K09") { on_device(grouped_heads); }

TEST_CASE("cpu: every scale and rate is right") { scales_and_rates(kCpu); }
TEST_CASE("device: every scale and rate is right") { on_device(scales_and_rates); }

TEST_CASE("cpu: PyTorch's float64 results are met") { goldens_agree(kCpu); }
TEST_CASE("device: PyTorch's float64 results are met") { on_device(goldens_agree); }

TEST_CASE("cpu: p = 0 gives the bits of chapter 05") {
  nothing_dropped(kCpu, [](const Inputs& x, const Options& o) {
    Forward y{x.Q, Matrix<float>(1, x.Q.N())};
    Vector<float> m(x.Q.N()), l = m;
    saved_forward_cpu<float>(x.Q.head(0, 0), x.K.head(0, 0), x.V.head(0, 0), y.O.head(0, 0), m,
                             l, y.LSE.row(0).transpose(), o.tile, o.causal);
    return y;
  });
}
TEST_CASE("device: p = 0 gives the bits of chapter 05") {
  if (!have_device()) return;
  nothing_dropped(kDevice, [](const Inputs& x, const Options& o) {
    const auto matrix = [](const Heads& heads) {
      return to_device(Matrix<float>(heads.head(0, 0)));
    };
    DeviceMatrix<float> O(x.Q.N(), x.Q.d());
    DeviceArray<float> m(x.Q.N()), l(x.Q.N()), LSE(x.Q.N());
    saved_forward_cuda(matrix(x.Q), matrix(x.K), matrix(x.V), O, m, l, LSE, o.tile, o.causal);
    Forward y{x.Q, to_host(LSE).transpose()};
    y.O.head(0, 0) = to_host(O);
    return y;
  });
}

TEST_CASE("cpu: errata E22 a stored mask gives the bits of the computed one") {
  stored_or_computed(kCpu);
}
TEST_CASE("device: errata E22 a stored mask gives the bits of the computed one") {
  on_device(stored_or_computed);
}

TEST_CASE("cpu: the same bits at every run K10") { repeatable(kCpu); }
TEST_CASE("device: the same bits at every run K10") { on_device(repeatable); }

TEST_CASE("cpu: a row whose weights are all dropped is not an empty one K11") {
  dropped_and_empty_rows(kCpu);
}
TEST_CASE("device: a row whose weights are all dropped is not an empty one K11") {
  on_device(dropped_and_empty_rows);
}

TEST_CASE("cpu: NaN and infinity K13") { nan_and_infinity(kCpu); }
TEST_CASE("device: NaN and infinity K13") { on_device(nan_and_infinity); }

TEST_CASE("cpu: heads may lie anywhere in memory") { heads_anywhere(kCpu); }
TEST_CASE("device: heads may lie anywhere in memory") { on_device(heads_anywhere); }

TEST_CASE("cpu: bad arguments are named") { bad_arguments(kCpu); }
TEST_CASE("device: bad arguments are named") { on_device(bad_arguments); }

TEST_CASE("cpu: reported cases K09 K11") { reported_cases(kCpu); }
TEST_CASE("device: reported cases K09 K11") { on_device(reported_cases); }

TEST_CASE("cpu: errata E21 the sum of all weights is right and that of the kept is not") {
  mean_over_all_masks(kCpu);
}
TEST_CASE("device: errata E21 the sum of all weights is right and that of the kept is not") {
  on_device(mean_over_all_masks);
}

TEST_CASE("cpu: the mean over all masks is attention without dropout") { unbiased(kCpu); }
TEST_CASE("device: the mean over all masks is attention without dropout") {
  on_device(unbiased);
}

// ---- the mask as random numbers

namespace {

double kept_share(const Bytes& mask) {
  double kept = 0;
  for (const std::uint8_t bit : mask.elements()) kept += bit;
  return kept / static_cast<double>(mask.elements().size());
}

// The correlation of two masks of the same rate, weight by weight.
double correlation(const Matrix<double>& a, const Matrix<double>& b, double p) {
  return ((a.array() - (1 - p)) * (b.array() - (1 - p))).mean() / (p * (1 - p));
}

}  // namespace

TEST_CASE("cpu: the share of kept weights is 1 - p within 5 sigma") {
  for (const double p : {0.001, 0.1, 0.25, 0.5, 0.9, 0.999}) {
    CAPTURE(p);
    const double n = 1e6, sigma = std::sqrt(p * (1 - p) / n);  // 0.0003 for p = 0.1
    const Bytes mask = kCpu.mask(2, 2, 500, 500, {.p = p, .seed = 1});
    CHECK(std::abs(kept_share(mask) - (1 - p)) <= 5 * sigma);
  }
}

TEST_CASE("cpu: neighbours and masks of other seeds and offsets are not correlated") {
  const Index n = 512;
  const double bound = 5 / std::sqrt(static_cast<double>(n * (n - 4)));
  for (const double p : {0.1, 0.5}) {
    const Dropout dropout{.p = p, .seed = 1, .offset = 1};
    const auto head = [&](const Dropout& other, Index b, Index h) {
      return Matrix<double>(kCpu.mask(2, 2, n, n, other).head(b, h).cast<double>());
    };
    const Matrix<double> mask = head(dropout, 0, 0);
    const auto check = [&](const char* what, const Matrix<double>& a, const Matrix<double>& b) {
      CAPTURE(p);
      CAPTURE(what);
      CHECK(std::abs(correlation(a, b, p)) <= bound);
    };
    for (const Index distance : {1, 2, 3, 4}) {
      const Index rest = n - distance;
      check("columns", mask.leftCols(rest), mask.rightCols(rest));
      check("rows", mask.topRows(rest), mask.bottomRows(rest));
    }
    check("transposed", mask, mask.transpose());
    check("heads", mask, head(dropout, 0, 1));
    check("batches", mask, head(dropout, 1, 0));
    check("offsets", mask, head({.p = p, .seed = 1, .offset = 2}, 0, 0));
    check("offset for seed", mask, head({.p = p, .seed = 2, .offset = 0}, 0, 0));
    check("seeds", mask, head({.p = p, .seed = 2, .offset = 1}, 0, 0));
    check("seeds", mask,
          head({.p = p, .seed = 1 + (std::uint64_t{1} << 32), .offset = 1}, 0, 0));
  }
}

TEST_CASE("cpu: K11 pytorch 192138 heads that are far apart have masks of their own") {
  // there b * H + h times 65536 * 65536 weights wrapped to 0
  const PhiloxMask mask({.p = 0.5, .seed = 3}, 70000);
  const auto bits = [&](Index b, Index h) {
    std::uint64_t all = 0;
    for (Index quad = 0; quad < 16; ++quad) all = all << 4 | mask.keep4(b, h, 0, quad);
    return all;
  };
  std::vector<std::uint64_t> seen;
  for (const Index b : {0, 1, 2, 61356}) {
    for (const Index h : {0, 1, 255, 256, 65535, 65536}) seen.push_back(bits(b, h));
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("cpu: the counter's words are the place's and its key is the seed") {
  // the published answers for zeros and ones; half of the numbers are kept
  CHECK(PhiloxMask({.p = 0.5}, 1).keep4(0, 0, 0, 0) == 0b1110);
  const std::int64_t most = 0xffffffff;
  const PhiloxMask ones({.p = 0.5, .seed = 0xffffffffffffffff, .offset = most}, most + 1);
  CHECK(ones.keep4(0, most, most, most) == 0b0100);
  const PhiloxMask pi({.p = 0.5, .seed = 0x299f31d0a4093822, .offset = 0x03707344}, 1 << 30);
  CHECK(pi.keep4(0, 0x13198a2e, 0x85a308d3, 0x243f6a88) == 0b0011);
}

TEST_CASE("cpu: the threshold is p in units of 2^-32 rounded") {
  const auto threshold = [](double p) { return PhiloxMask({.p = p}, 1).threshold; };
  CHECK(threshold(0) == 0);
  CHECK(threshold(0.1) == 429496730);
  CHECK(threshold(0.5) == 2147483648);
  CHECK(threshold(1e-10) == 0);  // 0.43 of them: nothing is dropped
  CHECK(threshold(1.2e-10) == 1);
  CHECK(threshold(std::nextafter(1.0, 0.0)) == std::uint64_t{1} << 32);
}

TEST_CASE("cpu: what does not fit the counter's words is refused") {
  const auto message = [](std::int64_t B, std::int64_t H, std::int64_t Nq, std::int64_t Nk) {
    return message_of([&] { require_dropout({.p = 0.5}, B, H, Nq, Nk); });
  };
  constexpr std::int64_t words = std::int64_t{1} << 32;
  CHECK(message(1, words, 1, 1) == "accepted");
  CHECK(message(65536, 65536, words, 4 * words) == "accepted");
  CHECK(message(0, 0, 0, 0) == "accepted");
  CHECK(message(65536, 65537, 1, 1) ==
        "there must be at most 4294967296 heads for dropout, found 65536 * 65537");
  CHECK(contains(message(words << 29, 8, 1, 1), "heads"));
  CHECK(message(1, 1, words + 1, 1) ==
        "Nq must be from 0 to 4294967296 for dropout, found 4294967297");
  CHECK(message(1, 1, 1, 4 * words + 1) ==
        "Nk must be from 0 to 17179869184 for dropout, found 17179869185");
}

// ---- float64, on the CPU

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  const auto x = random_batch<double>({2, 4, 2, 33, 70, 16}, 1);
  const Options o{.dropout = {.p = 0.2, .seed = 8}, .tile = {8, 32}, .causal = true};
  ReferenceHeadsOptions exact{.causal = true, .dropout = 0.2};
  const Bytes all = expected_mask(2, 4, 33, 70, o.dropout);
  for (Index head = 0; head < 8; ++head) exact.masks.emplace_back(all.head(head / 4, head % 4));
  const auto forward = reference_attention_heads(x.Q.view(), x.K.view(), x.V.view(), exact);
  const auto gradients =
      reference_backward_heads(x.Q.view(), x.K.view(), x.V.view(), x.dO.view(), exact);
  const auto y = forward_cpu<double>(x, o);
  check_outputs(y, forward, kFloat64);
  check_gradients(backward_cpu<double>(x, y, o), gradients, {1e-12, 1e-11});
}

TEST_CASE("cpu: K11 xformers 755 gradients are the slopes of the loss with that mask") {
  for (const Index N : {5, 9}) {  // Bc + 1 and 2 Bc + 1: a second and a third key tile
    CAPTURE(N);
    const auto x = random_batch<double>({1, 2, 1, N, N, 3}, 2);
    const Options o{.dropout = {.p = 0.3, .seed = 6}, .tile = {4, 4}, .causal = true};
    const auto loss = [&](const InputsOf<double>& at) {
      return as_rows(forward_cpu<double>(at, o).O).cwiseProduct(as_rows(at.dO)).sum();
    };
    const auto g = backward_cpu<double>(x, forward_cpu<double>(x, o), o);
    const auto check = [&](HeadsArray<double> InputsOf<double>::*input,
                           const HeadsArray<double>& gradient) {
      for (std::size_t i = 0; i < gradient.elements().size(); ++i) {
        CAPTURE(i);
        auto up = x, down = x;
        (up.*input).elements()[i] += 1e-5;
        (down.*input).elements()[i] -= 1e-5;
        const double slope = (loss(up) - loss(down)) / 2e-5;
        CHECK(matches(gradient.elements()[i], slope, 1e-6 * std::max(1.0, std::abs(slope))));
      }
    };
    check(&InputsOf<double>::Q, g.dQ);
    check(&InputsOf<double>::K, g.dK);
    check(&InputsOf<double>::V, g.dV);
  }
}

TEST_CASE("cpu: errata E22 dS with the dropped weights is wrong") {
  const std::vector<double> dS =
      wrong::dS_from_dropped_weights({{0, 1, 2}, {1, 2, 4}, {1, 0, 1}, 0.5});
  const double reported[] = {-0.630572, 0, 3.323559};  // K09 nki-samples 81; the sum is not 0
  for (std::size_t j = 0; j < 3; ++j) CHECK(matches(dS[j], reported[j], 1e-5));
}

// ---- the device's own

TEST_CASE("device: errata E22 a stored mask is read byte by byte and a computed one is not") {
  if (!have_device()) return;
  const Index B = 1, H = 2, Nq = 10, Nk = 20, d = 6;
  const Inputs x = random_batch({B, H, 1, Nq, Nk, d});
  const Options computed{.dropout = {.p = 0.5}, .tile = {4, 8}};
  const Bytes mask = expected_mask(B, H, Nq, Nk, computed.dropout);
  Options stored = computed;
  stored.mask = &mask;
  const auto read_bytes = [](const auto& work) {
    reset_device_traffic();
    work();
    const auto traffic = device_traffic();
    return counted(traffic) ? traffic->read_bytes : -1;
  };
  const Forward y = kDevice.forward(x, computed);
  const auto forward = read_bytes([&] { kDevice.forward(x, computed); }),
             forward_stored = read_bytes([&] { kDevice.forward(x, stored); }),
             backward = read_bytes([&] { kDevice.backward(x, y, computed); }),
             backward_stored = read_bytes([&] { kDevice.backward(x, y, stored); });
  if (forward < 0) return;                                  // a GPU does not count
  CHECK(forward == 4 * (H * Nq * d + H * 3 * 2 * Nk * d));  // Q, and K and V for 3 query tiles
  CHECK(forward_stored - forward == H * Nq * Nk);
  CHECK(backward_stored - backward == 2 * H * Nq * Nk);  // once for dK and dV, once for dQ
}

TEST_CASE("device: tiles that do not fit are refused by name") {
  if (!have_device()) return;
  const Inputs x = random_batch({1, 1, 1, 2, 2, 256});
  const Options o{.tile = {128, 128}};
  CHECK_THROWS_AS(kDevice.forward(x, o), std::invalid_argument);
  const Forward y = kDevice.forward(x, {.tile = {2, 2}});
  CHECK_THROWS_AS(kDevice.backward(x, y, {.tile = {64, 64}}), std::invalid_argument);
}

// ---- the executable

namespace {

// The files that PyTorch's cases consist of, in; six files out.
void program_on_goldens(const std::string& device) {
  for (const HeadsGolden& g : dropout_goldens()) {
    CAPTURE(g.name);
    const TemporaryFolder folder;
    const auto out = folder.path() / "deep/out";
    const ProgramResult r = run_on(device,
                                   joined(golden_inputs(g, {"q", "k", "v", "do", "mask"}),
                                          {"--dropout", std::to_string(g.dropout)}),
                                   out);
    CHECK(contains(r.out, "\"mask\":\"stored\""));
    check_outputs(Forward{load_heads<float>(out, "o"), load_rows<float>(out, "lse")}, g);
    check_gradients(Gradients{load_heads<float>(out, "dq"), load_heads<float>(out, "dk"),
                              load_heads<float>(out, "dv")},
                    g);
    CHECK(load_heads<std::uint8_t>(out, "mask").elements() ==
          stored_mask(g.masks, g.Q.B()).elements());
  }
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}), {"0 0                          0.00               nan",
                         "all results have the same bits: yes"});
}

TEST_CASE("cpu: executable meets PyTorch") { program_on_goldens("cpu"); }
TEST_CASE("device: executable meets PyTorch") {
  if (have_device()) program_on_goldens(device_kind());
}

TEST_CASE("cpu: executable computes the mask of seed and offset") {
  const TemporaryFolder folder;
  for (const std::string& device : usable_devices()) {
    const ProgramResult r =
        run_on(device,
               words("--batch 2 --heads 4 --kv-heads 2 --n 9 --nk 13 --d 8 --dropout 0.25 "
                     "--seed 18446744073709551615 --offset 4294967295"),
               folder.path());
    check_prints(r, {"\"seed\":18446744073709551615",
                     "\"mask\":\"computed\",\"mask_bytes\":24,"
                     "\"mask_bytes_if_stored\":936"});
    CHECK(load_heads<std::uint8_t>(folder.path(), "mask").elements() ==
          expected_mask(2, 4, 9, 13, {0.25, 0xffffffffffffffff, 0xffffffff}).elements());
  }
}

TEST_CASE("cpu: executable computes f8 matrices in float64 and keeps rank and type") {
  const TemporaryFolder folder;
  const auto x = random_batch<double>({1, 1, 1, 7, 5, 3}, 1);
  const auto out = folder.path() / "out";
  const auto npy = [](const HeadsArray<double>& heads) { return cli::heads_to_npy(heads, 2); };
  const ProgramResult r =
      run(words("--br 2 --bc 3 --causal --dropout 0.5 --seed 3 --out " + out.string()),
          put_inputs(folder,
                     {{"q", npy(x.Q)}, {"k", npy(x.K)}, {"v", npy(x.V)}, {"do", npy(x.dO)}}));
  REQUIRE(r.exit_code == 0);
  const Options o{.dropout = {.p = 0.5, .seed = 3}, .tile = {2, 3}, .causal = true};
  const auto y = forward_cpu<double>(x, o);
  const auto g = backward_cpu<double>(x, y, o);
  const auto check = [&](const std::string& name, const HeadsArray<double>& expected) {
    CAPTURE(name);
    CHECK(same_bits(load_matrix<double>(out, name), expected.head(0, 0)));
  };
  check("o", y.O);
  check("dq", g.dQ);
  check("dk", g.dK);
  check("dv", g.dV);
  CHECK(same_bits(load_vector<double>(out, "lse"), y.LSE.transpose()));
  CHECK(same_bits(load_matrix<std::uint8_t>(out, "mask"),
                  expected_mask(1, 1, 7, 5, o.dropout).head(0, 0)));
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const auto& heads) {
    return put(folder, name, cli::heads_to_npy(heads, 4));
  };
  const std::string q = file("q.npy", Heads(1, 2, 3, 4)), k = file("k.npy", Heads(1, 1, 5, 4)),
                    dO = file("do.npy", Heads(1, 2, 4, 4)),
                    do8 = file("do8.npy", HeadsArray<double>(1, 2, 3, 4)),
                    wide = file("wide.npy", Bytes(1, 2, 3, 6)),
                    many = file("many.npy", Bytes(1, 2, 3, 5, 200));
  const auto with = [&](const Arguments& more) {
    return joined({"--q", q, "--k", k, "--v", k}, more);
  };
  check_refused(with({"--dropout", "1"}), "dropout must be at least 0 and below 1, found 1");
  check_refused(with({"--dropout", "-0.1"}), "found -0.1");
  check_refused(with({"--dropout", "nan"}), "--dropout");
  check_refused(with({"--offset", "4294967296"}), "found '4294967296'");
  check_refused(with({"--offset", "-1"}), "found '-1'");
  check_refused(with({"--seed", "18446744073709551616"}), "--seed");
  check_refused(with({"--do", dO}), "do.npy: dimension 2 (Nq) is 4");
  check_refused(with({"--do", do8}), "do8.npy");
  check_refused(with({"--mask", wide}), "wide.npy: dimension 3 (Nk) is 6");
  check_refused(with({"--mask", many}), "many.npy: a mask holds 0 and 1, found 200");
  check_refused(with({"--mask", q}), "q.npy is f4, expected u1");
  check_refused(with({"--mask", wide, "--seed", "1"}), "--mask and --seed");
  check_refused({"--mask", wide, "--offset", "1"}, "--mask and --offset");
  check_refused({"--offset", "99999999999999999999"}, "an integer from 0 to 4294967295");
  check_refused(with({"--n", "4"}), "--n");
  check_refused({"--heads", "3", "--kv-heads", "2"}, "found 2 for 3");
  check_refused({"--br", "0"}, "--br");
  check_refused(with({"--device", other_device()}), other_device());
}

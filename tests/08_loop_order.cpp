// Chapter 08: attention with the queries outside and with the keys outside, on the CPU and on
// the device, against naive attention in float64; and what each of them moves, against the
// formulas.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include <doctest/doctest.h>

#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/q_outer.hpp"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "chapters/08_loop_order/tell_apart.hpp"
#include "chapters/08_loop_order/wrong_versions.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/ceil_div.hpp"
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
struct Result {
  Floats O;
  Vector<float> LSE, m, l;         // m and l stay NaN where the queries are outside
  std::optional<Traffic> traffic;  // nothing on a GPU
};

// The three ways of this chapter, on one device; every body runs over all of them.
struct Way {
  const char* name = "";
  LoopOrder order = LoopOrder::q_outer;
  Normalise when = Normalise::once;
  bool device = false;
  Result forward(const Floats& Q, const Floats& K, const Floats& V, const Options& o) const;
};
using Ways = std::vector<Way>;
Ways ways(bool device) {
  return {{"q_outer", LoopOrder::q_outer, Normalise::once, device},
          {"kv_outer, every tile", LoopOrder::kv_outer, Normalise::every_tile, device},
          {"kv_outer, once", LoopOrder::kv_outer, Normalise::once, device}};
}
const Ways kOnCpu = ways(false), kOnDevice = ways(true);

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMinusInf = -kInf<double>;

void forward_on_cpu(const Way& way, const Floats& Q, const Floats& K, const Floats& V,
                    const Options& o, Result& r) {
  Counts counts;
  const auto call = [&] {
    counts =
        way.order == LoopOrder::q_outer
            ? q_outer_cpu<float>(Q, K, V, r.O, r.LSE, o.tile, o.causal, o.scale)
            : kv_outer_cpu<float>(Q, K, V, r.O, r.m, r.l, o.tile, o.causal, o.scale, way.when);
  };
  check_unchanged(call, Q, K, V);
  CHECK(counts ==
        predict_loop_order(way.order, Q.rows(), K.rows(), Q.cols(), o.tile, o.causal));
  r.traffic = bytes_moved(counts, 4);
}

void forward_on_device(const Way& way, const Floats& Q, const Floats& K, const Floats& V,
                       const Options& o, Result& r) {
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O = to_device(r.O);
  DeviceArray<float> LSE = to_device(r.LSE), m = to_device(r.m), l = to_device(r.l);
  DeviceArray<unsigned> turns(1 + (o.tile.Br > 0 ? ceil_div(Q.rows(), o.tile.Br) : 0));
  reset_device_traffic();
  if (way.order == LoopOrder::q_outer) {
    q_outer_cuda(device_Q, device_K, device_V, O, LSE, o.tile, o.causal, o.scale);
    r.traffic = device_traffic();
  } else {
    kv_outer_cuda(device_Q, device_K, device_V, O, m, l, turns, o.tile, o.causal, o.scale,
                  way.when);
    r.traffic = device_traffic();
    if (r.traffic) {  // setting O, m, l and turns to their start values is not counted
      r.traffic->written_bytes -= 4 * (O.size() + m.size() + l.size() + turns.size());
    }
  }
  r = {to_host(O), to_host(LSE), to_host(m), to_host(l), r.traffic};
  check_holds(device_Q, Q, device_K, K, device_V, V);
}

// Outputs start as NaN, and inputs must come back unchanged.
Result Way::forward(const Floats& Q, const Floats& K, const Floats& V, const Options& o) const {
  const Vector<float> nan = Vector<float>::Constant(Q.rows(), NAN);
  Result r{Floats::Constant(Q.rows(), Q.cols(), NAN), nan, nan, nan, {}};
  (device ? forward_on_device : forward_on_cpu)(*this, Q, K, V, o, r);
  if (order == LoopOrder::kv_outer) r.LSE = r.m.array() + r.l.array().log();
  return r;
}

void check_result(const Result& actual, const ReferenceResult& expected, const Way& way) {
  check_outputs(actual, expected);
  if (way.order == LoopOrder::q_outer) return;
  check_close(actual.m, expected.m, kFloat32);
  check_close(actual.l, expected.l, kFloat32);
}

void check_traffic(const Result& actual, const Counts& predicted) {
  if (!counted(actual.traffic)) return;
  const Traffic bytes = bytes_moved(predicted, 4);
  CHECK(actual.traffic->read_bytes == bytes.read_bytes);
  CHECK(actual.traffic->written_bytes == bytes.written_bytes);
}

// One query of 1 against keys that are their own scores.
Result forward_scores(const Way& way, const std::vector<float>& scores,
                      const std::vector<float>& values, Index Bc = 2) {
  return way.forward(column({1}), column(scores), column(values),
                     {.tile = {1, Bc}, .scale = 1.0});
}

// Where a check was made.
std::string at(const Way& way, Size size, Index d, const Options& o) {
  const auto text = [](Index n) { return std::to_string(n) + " "; };
  return std::string(way.name) + ": Nq Nk d Br Bc " + text(size.Nq) + text(size.Nk) + text(d) +
         text(o.tile.Br) + text(o.tile.Bc) + (o.causal ? "causal" : "");
}

// The result and what it moved, against the reference and the formula.
void check_head(const Way& way, const Head& h, const Options& o) {
  const Size size{h.Q.rows(), h.K.rows()};
  const std::string where = at(way, size, h.Q.cols(), o);
  CAPTURE(where);
  const Result r = way.forward(h.Q, h.K, h.V, o);
  check_result(r, reference(h.Q, h.K, h.V, {.scale = o.scale, .causal = o.causal}), way);
  check_traffic(r,
                predict_loop_order(way.order, size.Nq, size.Nk, h.Q.cols(), o.tile, o.causal));
}

// ---- bodies that run on both devices

void ragged_sizes(const Ways& all) {
  for (const Way& way : all) {
    for (const bool causal : {false, true}) {
      for (const Index d : {1, 20}) {
        for (const Index Nq : {0, 1, 3, 4, 5, 9}) {
          for (const Index Nk : {0, 1, 7, 8, 9, 17}) {
            check_head(way, random_head(Nq, Nk, d), {.tile = {4, 8}, .causal = causal});
          }
        }
      }
    }
  }
}

void tile_shapes(const Ways& all) {
  for (const Way& way : all) {
    for (const Size size : {Size{23, 23}, {19, 30}, {30, 19}}) {
      for (const Tiling tile :
           {Tiling{1, 1}, {2, 3}, {3, 2}, {4, 4}, {8, 5}, {5, 8}, {32, 32}, {7, 100}}) {
        check_head(way, random_head(size.Nq, size.Nk, 6, 1), {.tile = tile, .causal = true});
      }
    }
  }
}

void head_dimensions(const Ways& all) {
  for (const Way& way : all) {
    for (const Index d : {1, 3, 31, 33, 64, 65, 128, 256}) {
      check_head(way, random_head(11, 13, d, 2), {.tile = {4, 5}});
    }
  }
}

void scales(const Ways& all) {
  const Head h = random_head(21, 21, 12);
  for (const Way& way : all) {
    CAPTURE(way.name);
    for (const double scale : {0.0, 1.0, -1.0, -0.3, 0.01, 3.0}) {
      CAPTURE(scale);
      check_head(way, h, {.tile = {4, 8}, .causal = true, .scale = scale});
    }
    CHECK_THROWS_AS(way.forward(h.Q, h.K, h.V, {.scale = std::nan("")}), std::invalid_argument);
    CHECK_THROWS_AS(way.forward(h.Q, h.K, h.V, {.scale = 1e300}), std::invalid_argument);
  }
}

void goldens_agree(const Ways& all) {
  for (const std::string set : {"forward", "real"}) {
    for (const Golden& g : goldens(set)) {
      for (const Way& way : all) {
        for (const bool causal : {false, true}) {
          CAPTURE(g.name);
          CAPTURE(way.name);
          CAPTURE(causal);
          const Result r = way.forward(g.Q, g.K, g.V,
                                       {.tile = {16, 32}, .causal = causal, .scale = g.scale});
          check_close(r.O, causal ? g.O_causal : g.O, kFloat32);
          check_close(r.LSE, causal ? g.LSE_causal : g.LSE, kFloat32);
        }
      }
    }
  }
}

// The maximum falls, rises and jumps from tile to tile: either side of a merge is rescaled, and
// a factor that is 0 or 1 is reached from both.
// Constant values come back, however often O has been divided and multiplied by l.
void moving_maximum(const Ways& all) {
  const auto [many_Q, many_K, ignored] = random_head(20, 200, 8, 3, 2.0);
  for (const Way& way : all) {
    CAPTURE(way.name);
    const std::vector<std::vector<float>> rows{{9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
                                               {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                               {0, 0, 200, 0, 0, -200, 0, 200, 0, 0},
                                               {300, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                               {0, 0, 0, 0, 0, 0, 0, 0, 0, 300},
                                               {-300, -300, -299, -300, -298, -300, 0, 0, 0, 0},
                                               {-80, 80, -80, 80, -80, 80, 0, 0, 0, 1}};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const Index Bc : {1, 2, 3, 10}) {
        CAPTURE(i);
        const Floats V = column({1, -2, 3, -4, 5, 6, 7, -8, 9, 10});
        check_head(way, {column({1}), column(rows[i]), V}, {.tile = {1, Bc}, .scale = 1.0});
      }
    }
    const Result r = way.forward(many_Q, many_K, Floats::Constant(200, 8, -2.5f),
                                 {.tile = {8, 1}, .causal = true});
    check_close(r.O, Matrix<double>::Constant(20, 8, -2.5), kFloat32);
  }
}

// No key, or only keys of score -inf: O = 0, m = -inf, l = 0, LSE = -inf.
void rows_without_keys(const Ways& all) {
  const float inf = kInf<float>;
  for (const Way& way : all) {
    CAPTURE(way.name);
    const auto check = [&](const Floats& Q, const Floats& K, const Floats& V, const Options& o,
                           const std::vector<double>& O, const std::vector<double>& LSE) {
      const Result r = way.forward(Q, K, V, o);
      check_close(r.O, doubles(O), kFloat32);
      check_close(r.LSE, doubles(LSE), kFloat32);
    };
    const auto row = [&](const std::vector<float>& scores, const std::vector<float>& values,
                         double O, double LSE) {
      check(column({1}), column(scores), column(values), {.tile = {1, 2}, .scale = 1.0}, {O},
            {LSE});
    };
    row({}, {}, 0, kMinusInf);
    row({-inf, -inf, -inf}, {1, 2, 3}, 0, kMinusInf);
    row({-inf, -inf, 5}, {1, 2, 3}, 3, 5);
    row({5, -inf, -inf}, {1, 2, 3}, 1, 5);
    row({-inf, -inf, 5, 5, -inf, -inf}, {1, 2, 3, 4, 5, 6}, 3.5, 5 + std::log(2.0));
    for (const Tiling tile : {Tiling{1, 1}, {2, 2}, {4, 4}, {8, 8}}) {
      const Options causal{.tile = tile, .causal = true, .scale = 1.0};
      // K01 flashinfer 4452
      check(column({1, 1, 1}), column({1}), column({5}), causal, {0, 0, 5},
            {kMinusInf, kMinusInf, 1});
      // K02 flash-attention 1778
      check(column({0, 0, 0, 0, 0}), column({1, 1}), column({1, 3}), causal, {0, 0, 0, 1, 2},
            {kMinusInf, kMinusInf, kMinusInf, 0, std::log(2.0)});
      // K03 flash-attention 978, xformers 1042
      check(column({1, NAN}), Floats(0, 1), Floats(0, 1), causal, {0, 0},
            {kMinusInf, kMinusInf});
    }
    // K03 flash-attention 2515: no query, nothing to do
    const Result none = way.forward(Floats(0, 4), Floats::Ones(64, 4), Floats::Ones(64, 4), {});
    CHECK(none.O.rows() == 0);
    CHECK(none.LSE.size() == 0);
  }
}

// K13: NaN reaches the rows that see it, whichever side of a merge it is on, and no other.
void nan_and_infinity(const Ways& all) {
  for (const Way& way : all) {
    CAPTURE(way.name);
    const Options plain{.tile = {2, 2}, .scale = 1.0},
        causal{.tile = {2, 2}, .causal = true, .scale = 1.0};
    {  // lattice 789: NaN in one query row
      const Result r = way.forward(column({1, NAN, 1}), column({1, 1}), column({3, 5}), plain);
      check_close(r.O, doubles({4, kNan, 4}), kFloat32, true);
      check_close(r.LSE, doubles({1 + std::log(2.0), kNan, 1 + std::log(2.0)}), kFloat32, true);
    }
    {  // pytorch 101967: NaN at a key that row 0 does not see
      const Result r = way.forward(column({1, 1}), column({1, NAN}), column({3, NAN}), causal);
      check_close(r.O, doubles({3, kNan}), kFloat32, true);
      check_close(r.LSE, doubles({1, kNan}), kFloat32, true);
    }
    for (std::size_t j = 0; j < 5; ++j) {  // in each position of the walk
      CAPTURE(j);
      std::vector<float> scores{5, 4, 3, 2, 1};
      for (const float bad : {NAN, kInf<float>}) {
        scores[j] = bad;
        const Result r = forward_scores(way, scores, {1, 1, 1, 1, 1});
        CHECK(std::isnan(r.O(0, 0)));
        CHECK(std::isnan(r.LSE[0]));
      }
      // in a value whose weight is far from 0, and in one whose weight is exactly 0
      std::vector<float> values(5, 1.0f);
      values[j] = NAN;
      for (const float score : {0.0f, -300.0f}) {
        scores.assign(5, 0.0f);
        scores[j] = score;
        const Result r = forward_scores(way, scores, values);
        CHECK(std::isnan(r.O(0, 0)));
        CHECK(std::isfinite(r.LSE[0]));
      }
    }
    // NaN beside -inf: the row is not an empty one, whichever tile comes first
    for (const std::vector<float>& scores :
         {std::vector<float>{-kInf<float>, NAN, -kInf<float>, -kInf<float>},
          {-kInf<float>, -kInf<float>, NAN, -kInf<float>}}) {
      const Result r = forward_scores(way, scores, {1, 1, 1, 1});
      CHECK(std::isnan(r.LSE[0]));
      CHECK(std::isnan(r.O(0, 0)));
    }
    {  // one column of V: the others and LSE are unharmed
      auto [Q, K, V] = random_head(5, 9, 3, 2);
      const Result clean = way.forward(Q, K, V, {.tile = {2, 4}});
      V.col(1).setConstant(NAN);
      const Result r = way.forward(Q, K, V, {.tile = {2, 4}});
      CHECK(same_bits(r.LSE, clean.LSE));
      CHECK(same_bits(r.O.col(0), clean.O.col(0)));
      CHECK(same_bits(r.O.col(2), clean.O.col(2)));
      CHECK(r.O.col(1).array().isNaN().all());
    }
  }
}

void reported_cases(const Ways& all) {
  const auto check = [&](const char* report, const std::vector<float>& q,
                         const std::vector<float>& k, const std::vector<float>& v,
                         const std::vector<double>& O, const std::vector<double>& LSE,
                         bool causal = false, double scale = 1) {
    CAPTURE(report);
    for (const Way& way : all) {
      for (const Tiling tile : {Tiling{1, 1}, {4, 2}, {2, 3}, {64, 64}}) {
        const Options o{.tile = tile, .causal = causal, .scale = scale};
        const std::string where = at(way, {}, 1, o);
        CAPTURE(where);
        const Result r = way.forward(column(q), column(k), column(v), o);
        check_close(r.O, doubles(O), {1e-6, 2e-7});
        check_close(r.LSE, doubles(LSE), {1e-6, 2e-7});
      }
    }
  };
  const double ln2 = std::log(2.0);
  check("K20 flash-attention 2342, 897, 1349", {1}, {0, 2, 1, 3}, {1, 2, 3, 4}, {3.342914},
        {3.4401897});
  check("K20 tilelang 1148", {1}, {200, 0}, {1, 2}, {1}, {200});
  check("K01 flash-attention 2082", {-200, -200, -200, -200}, {1, 1, 1, 1}, {1, 2, 3, 4},
        {1, 1.5, 2, 2.5}, {-200, -199.306853, -198.901388, -198.613706}, true);
  check("K01 flashinfer 4267", {-1}, {60000, 60001}, {1, 3}, {1.5378828}, {-59999.6867});
  check("K01 lattice 373", {-20000, 0}, {1, 0}, {1, 100}, {1, 50.5}, {-20000, ln2}, true);
  check("K02 flash-attention 282", {0, 0}, {0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}, {1.5, 2},
        {2 * ln2, std::log(5.0)}, true);
  check("K02 flashinfer 348", {0, 0}, {0, 0, 0}, {1, 2, 4}, {1.5, 7.0 / 3},
        {ln2, std::log(3.0)}, true);
  check("K08 pytorch 181645", {1}, {0, 1}, {1, 1}, {1}, {1.3132617});
  check("K15 pytorch 105202", {1, 1}, {1, 2}, {1, 1}, {1, 1}, {-1, -0.6867383}, true, -1);
}

// The worked example of the lesson. K21 flash-attention 1705: a reader's count of v1.
void counts_by_hand(const Ways& all) {
  const auto [Q, K, V] = random_head(8, 8, 2);
  for (const Way& way : all) {
    CAPTURE(way.name);
    const Result r = way.forward(Q, K, V, {.tile = {4, 2}});
    if (way.order == LoopOrder::q_outer) {
      check_traffic(r, {.reads = 80, .writes = 16, .statistics_writes = 8});
    } else {
      check_traffic(
          r, {.reads = 160, .writes = 64, .statistics_reads = 64, .statistics_writes = 64});
    }
  }
}

// K04 jax 27224, K10 flash-attention 414, K16 ggml 13438: the same bits at every run, with
// memory left over from other work, and with blocks that have to take turns at few rows.
void repeatable(const Ways& all) {
  for (const Way& way : all) {
    for (const Size size : {Size{4, 64}, {70, 90}}) {
      const auto [Q, K, V] = random_head(size.Nq, size.Nk, 24, 9);
      const Options o{.tile = {size.Nq == 4 ? 4 : 16, size.Nq == 4 ? 1 : 32}, .causal = true};
      CAPTURE(way.name);
      const Result first = way.forward(Q, K, V, o);
      check_result(first, reference(Q, K, V, {.causal = true}), way);
      for (int run = 0; run < 10; ++run) {
        way.forward(K, Q, Q, {.tile = {32, 16}, .scale = 0.1});
        CHECK(same_outputs(way.forward(Q, K, V, o), first));
      }
    }
  }
}

void bad_arguments(const Ways& all) {
  const auto [Q, K, V] = random_head(3, 4, 5);
  for (const Way& way : all) {
    CAPTURE(way.name);
    const auto message = [&](const Floats& q, const Floats& k, const Floats& v, Tiling tile) {
      return message_of([&] { way.forward(q, k, v, {.tile = tile}); });
    };
    check_refused_shapes(message);
    CHECK(message(Q, K, V, {.Br = 4, .Bc = -1}) == "Bc must be at least 1, found -1");
  }
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention and its formula") {
  ragged_sizes(kOnCpu);
}
TEST_CASE("device: every ragged size agrees with naive attention and its formula") {
  if (have_device()) ragged_sizes(kOnDevice);
}

TEST_CASE("cpu: the result does not depend on the tile shape K22") { tile_shapes(kOnCpu); }
TEST_CASE("device: the result does not depend on the tile shape K22") {
  if (have_device()) tile_shapes(kOnDevice);
}

TEST_CASE("cpu: every head dimension agrees with naive attention") { head_dimensions(kOnCpu); }
TEST_CASE("device: every head dimension agrees with naive attention") {
  if (have_device()) head_dimensions(kOnDevice);
}

TEST_CASE("cpu: any finite scale is right and others are refused") { scales(kOnCpu); }
TEST_CASE("device: any finite scale is right and others are refused") {
  if (have_device()) scales(kOnDevice);
}

TEST_CASE("cpu: PyTorch's float64 results are met on synthetic and real data") {
  goldens_agree(kOnCpu);
}
TEST_CASE("device: PyTorch's float64 results are met on synthetic and real data") {
  if (have_device()) goldens_agree(kOnDevice);
}

TEST_CASE("cpu: the maximum may fall and rise from tile to tile") { moving_maximum(kOnCpu); }
TEST_CASE("device: the maximum may fall and rise from tile to tile") {
  if (have_device()) moving_maximum(kOnDevice);
}

TEST_CASE("cpu: rows without keys K01 K02 K03") { rows_without_keys(kOnCpu); }
TEST_CASE("device: rows without keys K01 K02 K03") {
  if (have_device()) rows_without_keys(kOnDevice);
}

TEST_CASE("cpu: NaN reaches the rows that see it and no other K13") {
  nan_and_infinity(kOnCpu);
}
TEST_CASE("device: NaN reaches the rows that see it and no other K13") {
  if (have_device()) nan_and_infinity(kOnDevice);
}

TEST_CASE("cpu: reported cases K01 K02 K08 K15 K20") { reported_cases(kOnCpu); }
TEST_CASE("device: reported cases K01 K02 K08 K15 K20") {
  if (have_device()) reported_cases(kOnDevice);
}

TEST_CASE("cpu: the counts by hand K21 flash-attention 1705") { counts_by_hand(kOnCpu); }
TEST_CASE("device: the counts by hand K21 flash-attention 1705") {
  if (have_device()) counts_by_hand(kOnDevice);
}

TEST_CASE("cpu: the same bits at every run K04 K10 K16") { repeatable(kOnCpu); }
TEST_CASE("device: the same bits at every run K04 K10 K16") {
  if (have_device()) repeatable(kOnDevice);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(kOnCpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(kOnDevice);
}

// ---- formulas

// The definition: every pair of tiles that is not hidden.
Counts count_pairs(LoopOrder order, Index Nq, Index Nk, Index d, Tiling tile, bool causal) {
  Counts c;
  if (order == LoopOrder::q_outer)
    c = {.reads = Nq * d, .writes = Nq * d, .statistics_writes = Nq};
  if (order == LoopOrder::kv_outer && Nq > 0) c.reads = 2 * Nk * d;
  for (Index q = 0; q < Nq; q += tile.Br) {
    for (Index k = 0; k < Nk; k += tile.Bc) {
      const Index rows = std::min(tile.Br, Nq - q), cols = std::min(tile.Bc, Nk - k);
      if (classify_tile(q, rows, k, cols, mask_offset(Nq, Nk, causal)) == TileKind::hidden) {
        continue;
      }
      if (order == LoopOrder::q_outer) {
        c.reads += 2 * cols * d;
        continue;
      }
      c.reads += 2 * rows * d;
      c.writes += rows * d;
      c.statistics_reads += 2 * rows;
      c.statistics_writes += 2 * rows;
    }
  }
  return c;
}

TEST_CASE("cpu: the formulas agree with a count of all pairs of tiles") {
  for (const Index Nq : {0, 1, 5, 8, 17}) {
    for (const Index Nk : {0, 1, 6, 8, 19}) {
      for (const Tiling tile : {Tiling{1, 1}, {4, 2}, {2, 4}, {3, 5}, {64, 64}}) {
        for (const LoopOrder order : {LoopOrder::q_outer, LoopOrder::kv_outer}) {
          for (const bool causal : {false, true}) {
            const std::string where = at({}, {Nq, Nk}, 3, {tile, causal});
            CAPTURE(where);
            CHECK(predict_loop_order(order, Nq, Nk, 3, tile, causal) ==
                  count_pairs(order, Nq, Nk, 3, tile, causal));
          }
        }
      }
    }
  }
  CHECK(predict_loop_order(LoopOrder::q_outer, 100, 150, 40, {16, 32}, false) ==
        predict_q_outer(100, 150, 40, {16, 32}));
  CHECK(predict_loop_order(LoopOrder::kv_outer, 100, 150, 40, {16, 32}, false) ==
        predict_kv_outer(100, 150, 40, {16, 32}));
  CHECK_THROWS_AS(predict_loop_order(LoopOrder::q_outer, -1, 1, 1, {}, true),
                  std::invalid_argument);
  CHECK_THROWS_AS(predict_loop_order(LoopOrder::kv_outer, INT64_MAX, 1, 1, {}, true),
                  std::invalid_argument);
}

TEST_CASE("cpu: data and statistics are told apart by the number of columns") {
  // 7 rows: 3 accesses to each element, 2 to each of two statistics
  const auto traffic = [](Index d) {
    return Traffic{.read_bytes = 4 * 7 * (3 * d + 4), .written_bytes = 4 * 7 * d};
  };
  const Counts expected{.reads = 7 * 3 * 5, .writes = 7 * 5, .statistics_reads = 28};
  CHECK(tell_apart(traffic(5), 5, traffic(1), 1) == expected);
  CHECK(tell_apart(traffic(1), 1, traffic(2), 2) ==
        Counts{.reads = 21, .writes = 7, .statistics_reads = 28});
}

// ---- errata

TEST_CASE("cpu: errata E15 which order moves less depends on the tiles") {
  const auto moved = [](LoopOrder order, Tiling tile) {
    return predict_loop_order(order, 1024, 1024, 64, tile, false);
  };
  const LoopOrder q = LoopOrder::q_outer, kv = LoopOrder::kv_outer;
  // each order with the large tile where it stays: q_outer moves less
  const Counts by_q = moved(q, {128, 64}), by_kv = moved(kv, {64, 128});
  CHECK(by_q.reads + by_q.writes == 1179648);
  CHECK(by_q.total() == 1180672);
  CHECK(by_kv.total() == 1736704);
  // K21: the same tiles for both
  CHECK(moved(kv, {128, 64}).total() == 3342336);
  // and beyond Bc = 1.5 Br it is kv_outer
  CHECK(moved(q, {64, 96}).total() < moved(kv, {64, 96}).total());
  CHECK(moved(q, {64, 104}).total() > moved(kv, {64, 104}).total());
  CHECK(moved(q, {64, 128}).total() > moved(kv, {64, 128}).total());
}

TEST_CASE("cpu: errata E38 the notes' version 2 contains no update") {
  const Matrix<double> O = wrong::notes_version_2(3, 4, 2, 2, 2);
  CHECK(O.rows() == 3);
  CHECK(O.array().isNaN().all());
}

TEST_CASE("cpu: errata E39 maximum and sums in separate atomics are no merge") {
  const std::vector<wrong::Part> parts{{0, 1, 1}, {1, 1, 2}};
  CHECK(wrong::merge_with_atomics(parts) == 1.5);
  // the same parts are two keys of score 0 and 1, values 1 and 2, a key a tile
  for (const Way& way : kOnCpu) {
    CHECK(forward_scores(way, {0, 1}, {1, 2}, 1).O(0, 0) ==
          doctest::Approx(1.731059).epsilon(1e-6));
  }
  // agreed on the maximum first, both would be plain sums
  CHECK(wrong::merge_with_atomics({{1, std::exp(-1.0), std::exp(-1.0)}, {1, 1, 2}}) ==
        doctest::Approx(1.731059).epsilon(1e-6));
}

TEST_CASE("cpu: K20 flash-attention 2342 the normalised update as it has been printed") {
  const auto row = [](wrong::OldFactor factor) {
    return wrong::normalise_every_tile({0, 2, 1, 3}, {1, 2, 3, 4}, 2, factor);
  };
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-6); };
  CHECK(row(wrong::OldFactor::right) == near(3.342914));
  CHECK(row(wrong::OldFactor::inverted) == near(5.409794));
  CHECK(row(wrong::OldFactor::no_change_of_maximum) == near(4.212063));
}

// ---- the CPU's own

// What lies in memory after each K/V tile. K20 CUDATutorial 69: m and l.
TEST_CASE("cpu: the worked example of the lesson K20") {
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-5); };
  for (const Way& way : {kOnCpu[1], kOnCpu[2]}) {
    CAPTURE(way.name);
    const auto after = [&](const std::vector<float>& scores, const std::vector<float>& values,
                           float m, double l, double O) {
      const Result r = forward_scores(way, scores, values);
      CHECK(r.m[0] == m);
      CHECK(r.l[0] == near(l));
      CHECK(r.O(0, 0) == near(O));
    };
    after({1, 3}, {10, 20}, 3, 1.135335, 18.80797);
    after({1, 3, 2, 4}, {10, 20, 30, 40}, 4, 1.553002, 33.42914);
    after({0, 2}, {1, 2}, 2, 1.135335, 1.880797);
    after({0, 2, 1, 3}, {1, 2, 3, 4}, 3, 1.553002, 3.342914);
  }
}

TEST_CASE("cpu: with the queries outside O has the bits of chapter 04") {
  for (const Size size : {Size{21, 21}, {10, 33}, {33, 10}, {4, 0}}) {
    for (const bool causal : {false, true}) {
      const auto [Q, K, V] = random_head(size.Nq, size.Nk, 16, 6);
      Floats O(size.Nq, 16);
      causal_forward_cpu<float>(Q, K, V, O, {8, 12}, causal);
      CHECK(same_bits(kOnCpu[0].forward(Q, K, V, {.tile = {8, 12}, .causal = causal}).O, O));
    }
  }
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Index Nk : {0, 1, 20, 33, 64, 65, 129}) {
    const auto [Q, K, V] = random_head<double>(33, Nk, 16, 1);
    const auto expected = reference_attention(Q, K, V, {.causal = true});
    Matrix<double> O = Matrix<double>::Constant(33, 16, NAN);
    Vector<double> m = Vector<double>::Constant(33, NAN), l = m, LSE = m;
    q_outer_cpu<double>(Q, K, V, O, LSE, {.Br = 8, .Bc = 16}, true);
    check_close(O, expected.O, kFloat64);
    check_close(LSE, expected.LSE, kFloat64);
    for (const Normalise when : {Normalise::every_tile, Normalise::once}) {
      O.setConstant(NAN);
      kv_outer_cpu<double>(Q, K, V, O, m, l, {.Br = 8, .Bc = 16}, true, {}, when);
      check_close(O, expected.O, kFloat64);
      check_close(m, expected.m, kFloat64);
      check_close(l, expected.l, kFloat64);
    }
  }
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  for (const Way& way : kOnCpu) {
    check_head(way, random_head(9, 5, 4), {.tile = {INT64_MAX, INT64_MAX}, .causal = true});
  }
}

TEST_CASE("cpu: statistics of another size are refused by name") {
  const Head head = random_head(3, 4, 5);
  Floats O(3, 5);
  Vector<float> right(3), wrong(2);
  CHECK(message_of([&] { q_outer_cpu<float>(head.Q, head.K, head.V, O, wrong); }) ==
        "LSE must be [3], found [2]");
  CHECK(message_of([&] { kv_outer_cpu<float>(head.Q, head.K, head.V, O, wrong, right); }) ==
        "m must be [3], found [2]");
  CHECK(message_of([&] { kv_outer_cpu<float>(head.Q, head.K, head.V, O, right, wrong); }) ==
        "l must be [3], found [2]");
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(100, 150, 64, 11);
  const Ways cpu = kOnCpu, device = kOnDevice;
  for (std::size_t w = 0; w < cpu.size(); ++w) {
    CAPTURE(cpu[w].name);
    const Options o{.tile = {32, 32}, .causal = true};
    check_outputs(device[w].forward(Q, K, V, o), cpu[w].forward(Q, K, V, o));
  }
}

TEST_CASE("device: blocks in parallel give the bits of one block after the other") {
  if (!have_device()) return;
  const Index Nq = 37, Nk = 60, d = 5;
  const Tiling tile{.Br = 8, .Bc = 4};
  const auto [Q, K, V] = random_head(Nq, Nk, d, 13, 2.0);
  const Result together = kOnDevice[1].forward(Q, K, V, {.tile = tile});
  // a launch for each K/V tile, which begins with what the launch before has left
  const auto device_Q = to_device(Q);
  DeviceMatrix<float> O(Nq, d), no_O(0, d);
  DeviceArray<float> m(Nq), l(Nq), no_m(0), no_l(0);
  DeviceArray<unsigned> turns(1 + ceil_div(Nq, tile.Br));
  kv_outer_start_cuda(O, m, l, turns);
  for (Index k = 0; k < Nk; k += tile.Bc) {
    const auto Kj = to_device(Floats(K.middleRows(k, tile.Bc))),
               Vj = to_device(Floats(V.middleRows(k, tile.Bc)));
    kv_outer_start_cuda(no_O, no_m, no_l, turns);  // the turns alone
    kv_outer_walk_cuda(device_Q, Kj, Vj, O, m, l, turns, tile);
  }
  CHECK(same_bits(to_host(O), together.O));
  CHECK(same_bits(to_host(m), together.m));
  CHECK(same_bits(to_host(l), together.l));
}

TEST_CASE("device: at the end every block has had its turns") {
  if (!have_device()) return;
  for (const Size size : {Size{20, 20}, {20, 33}, {33, 20}}) {
    const Index Nq = size.Nq, Nk = size.Nk;
    const Tiling tile{.Br = 4, .Bc = 3};
    const auto [Q, K, V] = random_head(Nq, Nk, 4);
    const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
    DeviceMatrix<float> O(Nq, 4);
    DeviceArray<float> m(Nq), l(Nq);
    DeviceArray<unsigned> turns(1 + ceil_div(Nq, tile.Br));
    kv_outer_cuda(device_Q, device_K, device_V, O, m, l, turns, tile, true);
    const std::vector<unsigned> found = turns.download();
    CHECK(found[0] == ceil_div(Nk, tile.Bc));
    for (Index i = 0; i < ceil_div(Nq, tile.Br); ++i) {
      const Index last = std::min(Nq, (i + 1) * tile.Br) - 1;
      CHECK(found[static_cast<std::size_t>(i + 1)] ==
            ceil_div(visible_keys(last, 0, Nk, Nk - Nq), tile.Bc));
    }
  }
}

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Head h = random_head(20, 27, 10, 12);
  for (const Way& way : kOnDevice) {
    CAPTURE(way.name);
    const Options o{.tile = {8, 8}, .causal = true};
    const Result first = way.forward(h.Q, h.K, h.V, o);
    in_other_thread_orders([&] { CHECK(same_outputs(way.forward(h.Q, h.K, h.V, o), first)); });
  }
}

TEST_CASE("device: the counts of errata E15 are met at full size") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(1024, 1024, 64, 5);
  const Result by_q = kOnDevice[0].forward(Q, K, V, {.tile = {128, 64}});
  check_traffic(by_q, predict_q_outer(1024, 1024, 64, {128, 64}));
  const Result by_kv = kOnDevice[2].forward(Q, K, V, {.tile = {64, 128}});
  check_traffic(by_kv, predict_kv_outer(1024, 1024, 64, {64, 128}));
  check_close(by_kv.O, by_q.O, {1e-6, 1e-6});
}

TEST_CASE("device: what does not fit is refused before anything is written") {
  if (!have_device()) return;
  const Head h = random_head(2, 2, 256);
  for (const Way& way : kOnDevice) {
    CHECK(message_of([&] {
            way.forward(h.Q, h.K, h.V, {.tile = {64, 64}});
          }) == does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552));
  }
  const auto device_Q = to_device(h.Q), device_K = to_device(h.K), device_V = to_device(h.V);
  DeviceMatrix<float> O = to_device(Floats(Floats::Constant(2, 256, 7)));
  DeviceArray<float> right(2), wrong(3);
  DeviceArray<unsigned> turns(2), no_turns(1);
  const auto message = [&](DeviceArray<float>& m, DeviceArray<float>& l,
                           DeviceArray<unsigned>& t, std::optional<double> scale) {
    return message_of([&] {
      kv_outer_cuda(device_Q, device_K, device_V, O, m, l, t, {8, 8}, false, scale);
    });
  };
  CHECK(message(wrong, right, turns, {}) == "m must be [2], found [3]");
  CHECK(message(right, wrong, turns, {}) == "l must be [2], found [3]");
  CHECK(message(right, right, no_turns, {}) == "turns must be [2], found [1]");
  CHECK(message(right, right, turns, kNan) == "the scale must be finite in float32, found nan");
  CHECK(same_bits(to_host(O), Floats(Floats::Constant(2, 256, 7))));
  CHECK(message_of([&] {
          q_outer_cuda(device_Q, device_K, device_V, O, wrong, {8, 8});
        }) == "LSE must be [2], found [3]");
}

// ---- the executable

namespace {

// The ways of the command line.
const char* const kWays[] = {"--order q_outer", "--order kv_outer",
                             "--order kv_outer --normalise once"};

void program_on_real_data(const std::string& device) {
  const Golden g = goldens("real")[3];
  const TemporaryFolder folder;
  const auto out = folder.path() / "out/deep";
  for (const std::string way : kWays) {
    for (const bool causal : {true, false}) {
      CAPTURE(way);
      CAPTURE(causal);
      const Arguments options = words(way + (causal ? " --causal" : ""));
      run_on(device, joined(input_files(g.folder, {"q", "k", "v"}), options), out);
      check_close(load_matrix<float>(out, "o"), causal ? g.O_causal : g.O, kFloat32);
      check_close(load_vector<float>(out, "lse"), causal ? g.LSE_causal : g.LSE, kFloat32);
    }
  }
}

void json_counts(const std::string& device, Index d, LoopOrder order, bool causal) {
  const bool q_outer = order == LoopOrder::q_outer;
  const std::string name = q_outer ? "q_outer" : "kv_outer";
  const ProgramResult r =
      run(words("--n 9 --nk 7 --br 4 --bc 2 --json --d " + std::to_string(d) + " --order " +
                name + " --device " + device + (causal ? " --causal" : "")));
  const Counts c = predict_loop_order(order, 9, 7, d, {4, 2}, causal);
  const auto pair = [&](const std::string& key, std::int64_t n) {
    return "\"" + key + "\":" + (device == "cuda" ? "null" : std::to_string(n)) +
           ",\"predicted_" + key + "\":" + std::to_string(n);
  };
  check_prints(r, {pair("reads", c.reads) + "," + pair("writes", c.writes) + "," +
                       pair("statistics_reads", c.statistics_reads) + "," +
                       pair("statistics_writes", c.statistics_writes),
                   "\"order\":\"" + name + "\",\"normalise\":\"" +
                       (q_outer ? "once" : "every_tile") + "\""});
}

void json_counts(const std::string& device) {
  for (const LoopOrder order : {LoopOrder::q_outer, LoopOrder::kv_outer}) {
    for (const Index d : {3, 1}) {
      for (const bool causal : {false, true}) json_counts(device, d, order, causal);
    }
  }
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs and shows E16 and E37") {
  // E37: 4 heads of 16384 in tiles of 128. E16: a single query is one block a head in both
  check_prints(run({}), {"         1   4  1.5530      33.4291   51.9155",
                         "   64  128    2229248    1736704   kv_outer", "is 1180672 to 1736704",
                         "              4           4                512      4        512",
                         "3.342914", "1.500000", " nan\n"});
}

TEST_CASE("cpu: executable on a real sentence meets PyTorch") { program_on_real_data("cpu"); }
TEST_CASE("device: executable on a real sentence meets PyTorch") {
  if (have_device()) program_on_real_data(device_kind());
}

TEST_CASE("cpu: executable counts as JSON") { json_counts("cpu"); }
TEST_CASE("device: executable counts as JSON") {
  if (have_device()) json_counts(device_kind());
}

TEST_CASE("cpu: executable computes f8 input in float64 and keeps its type") {
  const TemporaryFolder folder;
  const auto [Q, K, V] = random_head<double>(7, 5, 3);
  const auto out = folder.path() / "out";
  const Arguments inputs =
      joined(put_inputs(folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}}),
             {"--out", out.string()});
  const auto expected = reference_attention(Q, K, V, {.scale = -0.7, .causal = true});
  for (const std::string way : kWays) {
    check_prints(run(words(way + " --br 2 --bc 3 --causal --scale -0.7"), inputs),
                 "Counted while it ran; the formula agrees.");
    check_close(load_matrix<double>(out, "o"), expected.O, kFloat64);
    check_close(load_vector<double>(out, "lse"), expected.LSE, kFloat64);
  }
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  const auto check = [&](Index Nq, Index, const Arguments& inputs, const std::string& device) {
    for (const std::string order : {"q_outer", "kv_outer"}) {
      run_on(device, joined(inputs, {"--order", order}), out);
      check_close(load_matrix<float>(out, "o"), Matrix<double>::Zero(Nq, 4), {0, 0});
      check_close(load_vector<float>(out, "lse"), Vector<double>::Constant(Nq, kMinusInf),
                  {0, 0});
    }
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  check_refused_heads({"--causal"});
  check_refused(words("--order v2"), "--order");
  check_refused(words("--order kv_outer --normalise twice"), "--normalise");
  check_refused(words("--normalise once"), "--normalise is for --order kv_outer");
  check_refused(words("--scale nan"), "--scale");
  if (simulated()) {
    check_refused(words("--device sim --d 256 --n 4 --br 64 --bc 64"), "232448");
    // the tiles fit to the byte, but the number of the block does not
    check_refused(words("--device sim --d 1 --n 4 --br 31 --bc 1755 --order kv_outer"),
                  "232464");
  }
}

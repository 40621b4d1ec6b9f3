// Chapter 02: what standard attention and the walks of the tiled orders move, counted while
// they run, against the formulas; and standard attention's result against naive attention in
// float64.
//
// That chapter 03's kernel meets predict_q_outer, too, is tested in tests/03_tiled_forward.cpp.
// Cases named Kxx come from public reports, Exx from docs/errata.md.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <string>
#include <tuple>

#include "chapters/02_io_counting/counted_matrix.hpp"
#include "chapters/02_io_counting/device_counts.hpp"
#include "chapters/02_io_counting/io_counting.hpp"
#include "chapters/02_io_counting/io_counting_cuda.hpp"
#include "chapters/02_io_counting/predict.hpp"
#include "chapters/02_io_counting/standard_attention.hpp"
#include "chapters/02_io_counting/standard_attention_cuda.hpp"
#include "common/device/eigen.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

using Scale = std::optional<double>;

Matrix<double> exact(const Floats& Q, const Floats& K, const Floats& V, Scale scale = {}) {
  return reference(Q, K, V, {.scale = scale}).O;
}

// ---- one algorithm on one device: what it moved, and what came out. Outputs start as NaN, and
// inputs must come back unchanged.

struct Outcome {
  std::optional<Counts> counts;  // nothing on a GPU
  Floats O;
  Vector<float> m, l, LSE;
};
using Algorithm = std::function<Outcome(const Head&, Tiling)>;

Vector<float> constant(Index size, float value) { return Vector<float>::Constant(size, value); }

Outcome standard_on_cpu(const Head& h, Tiling tile, Scale scale = {}) {
  Outcome r{{}, Floats::Constant(h.Q.rows(), h.Q.cols(), NAN), {}, {}, {}};
  const auto call = [&] {
    r.counts = standard_attention_cpu<float>(h.Q, h.K, h.V, r.O, tile, scale);
  };
  check_unchanged(call, h.Q, h.K, h.V);
  return r;
}

Outcome q_outer_on_cpu(const Head& h, Tiling tile) {
  const Index Nq = h.Q.rows();
  Outcome r{{}, Floats::Constant(Nq, h.Q.cols(), NAN), {}, {}, constant(Nq, NAN)};
  r.counts = walk_q_outer_cpu(h.Q, h.K, h.V, r.O, r.LSE, tile);
  return r;
}

Outcome kv_outer_on_cpu(const Head& h, Tiling tile) {
  const Index Nq = h.Q.rows();
  Outcome r{
      {}, Floats::Zero(Nq, h.Q.cols()), constant(Nq, -kInf<float>), constant(Nq, 0.0f), {}};
  r.counts = walk_kv_outer_cpu(h.Q, h.K, h.V, r.O, r.m, r.l, tile);
  return r;
}

struct DeviceHead {
  explicit DeviceHead(const Head& h)
      : Q(to_device(h.Q)), K(to_device(h.K)), V(to_device(h.V)) {}
  DeviceMatrix<float> Q, K, V;
};

Outcome standard_on_device(const Head& h, Tiling tile, Scale scale = {}) {
  const DeviceHead on(h);
  DeviceMatrix<float> O(h.Q.rows(), h.Q.cols());  // a new array is NaN
  Outcome r;
  r.counts =
      count_on_device([&](bool) { standard_attention_cuda(on.Q, on.K, on.V, O, tile, scale); });
  r.O = to_host(O);
  check_holds(on.Q, h.Q, on.K, h.K, on.V, h.V);
  return r;
}

Outcome q_outer_on_device(const Head& h, Tiling tile) {
  const DeviceHead on(h);
  Outcome r;
  r.counts = count_on_device([&](bool statistics) {
    DeviceMatrix<float> O(h.Q.rows(), h.Q.cols());
    DeviceArray<float> LSE(statistics ? h.Q.rows() : 0);
    walk_q_outer_cuda(on.Q, on.K, on.V, O, LSE, tile);
    r.O = to_host(O);
    if (statistics) r.LSE = to_host(LSE);
  });
  return r;
}

Outcome kv_outer_on_device(const Head& h, Tiling tile) {
  const DeviceHead on(h);
  const Index Nq = h.Q.rows();
  Outcome r;
  r.counts = count_on_device([&](bool statistics) {
    DeviceMatrix<float> O = to_device(Floats(Floats::Zero(Nq, h.Q.cols())));
    DeviceArray<float> m = to_device(constant(statistics ? Nq : 0, -kInf<float>)),
                       l = to_device(constant(statistics ? Nq : 0, 0.0f));
    walk_kv_outer_cuda(on.Q, on.K, on.V, O, m, l, tile);
    r.O = to_host(O);
    if (statistics) r.m = to_host(m), r.l = to_host(l);
  });
  return r;
}

// ---- counts

void check_counts(const std::optional<Counts>& actual, const Counts& expected) {
  if (!counted(actual)) return;
  CHECK(actual->reads == expected.reads);
  CHECK(actual->writes == expected.writes);
  CHECK(actual->statistics_reads == expected.statistics_reads);
  CHECK(actual->statistics_writes == expected.statistics_writes);
}

struct Algorithms {
  Algorithm standard, q_outer, kv_outer;
};
const Algorithms kOnCpu{[](const Head& h, Tiling tile) { return standard_on_cpu(h, tile); },
                        q_outer_on_cpu, kv_outer_on_cpu};
const Algorithms kOnDevice{
    [](const Head& h, Tiling tile) { return standard_on_device(h, tile); }, q_outer_on_device,
    kv_outer_on_device};

// What all three move is what the formulas say.
void check_predicted(const Algorithms& run, Index Nq, Index Nk, Index d, Tiling tile) {
  const Head h = random_head(Nq, Nk, d);
  check_counts(run.standard(h, tile).counts, predict_standard(Nq, Nk, d, tile));
  check_counts(run.q_outer(h, tile).counts, predict_q_outer(Nq, Nk, d, tile));
  check_counts(run.kv_outer(h, tile).counts, predict_kv_outer(Nq, Nk, d, tile));
}

// N = 8, d = 2, Br = 4, Bc = 2: Tr = 2, Tc = 4. Also K21-127, flash-attention 1705: a reader
// derives the read count of kv_outer and asks whether it is right.
void by_hand(const Algorithms& run) {
  const Head h = random_head(8, 8, 2);
  const Tiling tile{.Br = 4, .Bc = 2};
  // standard: Q 16, K 2 * 16, S 64, P 64, V 2 * 16; S 64, P 64, O 16
  check_counts(run.standard(h, tile).counts,
               {.reads = 16 + 32 + 64 + 64 + 32, .writes = 64 + 64 + 16});
  // q_outer: Q 16, K and V 2 * 32; O 16, LSE 8
  check_counts(run.q_outer(h, tile).counts,
               {.reads = 16 + 64, .writes = 16, .statistics_writes = 8});
  // kv_outer: K and V 32, Q and O 4 * 32; O 4 * 16; m and l 4 * 16, both ways
  const auto kv_outer = run.kv_outer(h, tile).counts;
  check_counts(
      kv_outer,
      {.reads = 32 + 128, .writes = 64, .statistics_reads = 64, .statistics_writes = 64});
  if (!kv_outer) return;
  CHECK(kv_outer->reads + kv_outer->statistics_reads == 224);
  CHECK(kv_outer->writes + kv_outer->statistics_writes == 128);
  CHECK(kv_outer->total() == 352);
  // more than standard attention with all of Q on chip, at this tiny size
  const auto textbook = run.standard(h, {.Br = 8, .Bc = 2}).counts;
  CHECK(textbook->total() == 320);
}

void every_size(const Algorithms& run) {
  int sizes = 0;
  for (const Index d : {1, 3}) {
    CAPTURE(d);
    each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9}, [&](Index Nq, Index Nk) {
      for (const Tiling tile : {Tiling{1, 1},
                                {1, 8},
                                {2, 3},
                                {3, 2},
                                {4, 8},
                                {4, 4},
                                {5, 7},
                                {8, 1},
                                {9, 9},
                                {64, 32}}) {
        CAPTURE(tile);
        check_predicted(run, Nq, Nk, d, tile);
        ++sizes;
      }
    });
  }
  CHECK(sizes >= 500);
}

void larger_sizes(const Algorithms& run) {
  for (const auto& [Nq, Nk, d] :
       {std::array<Index, 3>{65, 130, 40}, {130, 65, 33}, {1, 200, 64}, {64, 64, 256}}) {
    for (const Tiling tile : {Tiling{.Br = 32, .Bc = 32}, {.Br = 16, .Bc = 48}}) {
      check_predicted(run, Nq, Nk, d, tile);
    }
  }
}

// ---- results

// Small integers, whose sums float32 holds exactly.
Head integer_head(Index Nq, Index Nk, Index d) {
  Head h = random_head(Nq, Nk, d, 11);
  for (Floats* M : {&h.Q, &h.K, &h.V})
    *M = M->unaryExpr([](float x) { return std::round(3.0f * x); });
  return h;
}

// A walk must use what it loads, or a compiler may leave the loads out.
void walks_use_what_they_load(const Algorithms& run) {
  for (const auto& [Nq, Nk, d] : {std::array<Index, 3>{8, 8, 2},
                                  {5, 7, 3},
                                  {33, 20, 130},
                                  {1, 1, 1},
                                  {4, 0, 3},
                                  {0, 5, 2}}) {
    for (const Tiling tile : {Tiling{4, 2}, {2, 3}, {64, 64}, {1, 7}, {16, 5}}) {
      const Head h = integer_head(Nq, Nk, d);
      const auto keys = static_cast<float>(Nk);
      Floats expected = keys * h.Q;
      for (Index j = 0; j < Nk; ++j) expected.rowwise() += h.K.row(j) + h.V.row(j);
      const Outcome q_outer = run.q_outer(h, tile), kv_outer = run.kv_outer(h, tile);
      check_close(q_outer.O, expected, {0, 0});
      check_close(kv_outer.O, expected, {0, 0});
      check_close(q_outer.LSE, constant(Nq, std::log(keys)), {0, 1e-6});
      check_close(kv_outer.m, constant(Nq, Nk > 0 ? 0.0f : -kInf<float>), {0, 0});
      check_close(kv_outer.l, constant(Nq, keys), {0, 0});
    }
  }
}

using Attention =
    std::function<Floats(const Floats& Q, const Floats& K, const Floats& V, Tiling, Scale)>;

Floats attend_on_cpu(const Floats& Q, const Floats& K, const Floats& V, Tiling tile,
                     Scale scale) {
  return standard_on_cpu({Q, K, V}, tile, scale).O;
}
Floats attend_on_device(const Floats& Q, const Floats& K, const Floats& V, Tiling tile,
                        Scale scale) {
  return standard_on_device({Q, K, V}, tile, scale).O;
}

void standard_is_attention(const Attention& attend) {
  for (const Index d : {1, 3, 20}) {
    CAPTURE(d);
    each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
      const auto [Q, K, V] = random_head(Nq, Nk, d);
      check_close(attend(Q, K, V, {.Br = 4, .Bc = 8}, {}), exact(Q, K, V), kFloat32);
    });
  }
  for (const Index d : {31, 64, 100, 256}) {
    CAPTURE(d);
    const auto [Q, K, V] = random_head(10, 37, d);
    check_close(attend(Q, K, V, {.Br = 8, .Bc = 16}, {}), exact(Q, K, V), kFloat32);
  }
  const auto [Q, K, V] = random_head(37, 300, 24);  // more keys than threads
  for (const Index Br : {1, 7, 37, 64}) {
    for (const Index Bc : {1, 3, 53, 100}) {
      CAPTURE(Br);
      CAPTURE(Bc);
      check_close(attend(Q, K, V, {.Br = Br, .Bc = Bc}, {}), exact(Q, K, V), kFloat32);
    }
  }
  for (const double scale : {0.0, 1.0, -0.3, 3.0}) {
    CAPTURE(scale);
    check_close(attend(Q, K, V, {.Br = 16, .Bc = 32}, scale), exact(Q, K, V, scale), kFloat32);
  }
  CHECK_THROWS_AS(attend(Q, K, V, {}, std::nan("")), std::invalid_argument);
  CHECK_THROWS_AS(attend(Q, K, V, {}, 1e300), std::invalid_argument);
  // scores so large that exp without the maximum overflows
  check_close(attend(column({1}), column({200, 0, 190}), column({1, 2, 3}), {}, 1.0),
              exact(column({1}), column({200, 0, 190}), column({1, 2, 3}), 1.0), kFloat32);
}

void goldens_agree(const Attention& attend) {
  for (const std::string set : {"forward", "real"}) {
    for (const Golden& g : goldens(set)) {
      CAPTURE(g.name);
      check_close(attend(g.Q, g.K, g.V, {.Br = 16, .Bc = 32}, g.scale), g.O, kFloat32);
    }
  }
}

void edges(const Attention& attend) {
  const Tiling tile{.Br = 2, .Bc = 2};
  const float inf = kInf<float>;
  // no key, or only keys of score -inf: 0, whatever V holds
  check_close(attend(column({1, 2}), Floats(0, 1), Floats(0, 1), tile, 1.0),
              Matrix<double>::Zero(2, 1), {0, 0});
  check_close(attend(column({1}), column({-inf, -inf, -inf}), column({1, NAN, inf}), tile, 1.0),
              Matrix<double>::Zero(1, 1), {0, 0});
  // one finite score among them
  for (Index j = 0; j < 3; ++j) {
    Floats K = column({-inf, -inf, -inf}), V = column({1, 2, 3});
    K(j, 0) = 5;
    V(j, 0) = 7;
    check_close(attend(column({1}), K, V, tile, 1.0), column({7}), {0, 0});
  }
  // NaN in a query: its row
  check_close(attend(column({1, NAN, 1}), column({1, 1}), column({3, 5}), tile, 1.0),
              doubles({4, NAN, 4}), kFloat32, true);
  // NaN in a key: every row; a score of +inf: its row
  for (Index j = 0; j < 5; ++j) {
    CAPTURE(j);
    Floats K = column({1, 2, 3, 4, 5});
    K(j, 0) = NAN;
    check_close(attend(column({1, 0}), K, column({1, 2, 3, 4, 5}), tile, 1.0),
                doubles({NAN, NAN}), kFloat32, true);
    K = column({-inf, -inf, -inf, -inf, -inf});
    K(j, 0) = NAN;
    check_close(attend(column({1}), K, column({1, 2, 3, 4, 5}), tile, 1.0), doubles({NAN}),
                kFloat32, true);
    K = column({0, 0, 0, 0, 0});
    K(j, 0) = 3e38f;
    check_close(attend(column({10, 0}), K, column({3, 3, 3, 3, 3}), tile, 1.0),
                doubles({NAN, 3}), kFloat32, true);
  }
  // NaN in one channel of a value: that channel, even where the weight underflows to 0
  Floats V = Floats::Ones(3, 2);
  V(1, 1) = NAN;
  check_close(attend(Floats::Ones(2, 2), Floats::Ones(3, 2), V, tile, 1.0),
              Matrix<double>{{1, NAN}, {1, NAN}}, kFloat32, true);
  check_close(attend(column({1}), column({0, -300}), column({1, NAN}), tile, 1.0),
              doubles({NAN}), kFloat32, true);
}

void bad_arguments(const Algorithms& run) {
  for (const Algorithm& algorithm : {run.standard, run.q_outer, run.kv_outer}) {
    const auto message = [&](const Floats& Q, const Floats& K, const Floats& V, Tiling tile) {
      return message_of([&] { algorithm({Q, K, V}, tile); });
    };
    check_refused_shapes(message);
    const auto [Q, K, V] = random_head(3, 4, 5);
    CHECK(message(Q, K, V, {.Br = 4, .Bc = -1}) == "Bc must be at least 1, found -1");
    CHECK(message(Floats::Zero(2, 257), Floats::Zero(3, 257), Floats::Zero(3, 257), {}) ==
          "the head dimension d must be from 1 to 256, found 257");
  }
}

}  // namespace

TEST_CASE("cpu: the counts by hand K21") { by_hand(kOnCpu); }
TEST_CASE("device: the counts by hand K21") {
  if (have_device()) by_hand(kOnDevice);
}

TEST_CASE("cpu: counted is predicted at every size") { every_size(kOnCpu); }
TEST_CASE("device: counted is predicted at every size") {
  if (have_device()) every_size(kOnDevice);
}

TEST_CASE("cpu: counted is predicted at larger sizes") { larger_sizes(kOnCpu); }
TEST_CASE("device: counted is predicted at larger sizes") {
  if (have_device()) larger_sizes(kOnDevice);
}

TEST_CASE("cpu: walks use what they load") { walks_use_what_they_load(kOnCpu); }
TEST_CASE("device: walks use what they load") {
  if (have_device()) walks_use_what_they_load(kOnDevice);
}

TEST_CASE("cpu: standard attention is attention") { standard_is_attention(attend_on_cpu); }
TEST_CASE("device: standard attention is attention") {
  if (have_device()) standard_is_attention(attend_on_device);
}

TEST_CASE("cpu: standard attention meets PyTorch on synthetic and real data") {
  goldens_agree(attend_on_cpu);
}
TEST_CASE("device: standard attention meets PyTorch on synthetic and real data") {
  if (have_device()) goldens_agree(attend_on_device);
}

TEST_CASE("cpu: no key and NaN and infinity") { edges(attend_on_cpu); }
TEST_CASE("device: no key and NaN and infinity") {
  if (have_device()) edges(attend_on_device);
}

TEST_CASE("cpu: bad arguments are refused") { bad_arguments(kOnCpu); }
TEST_CASE("device: bad arguments are refused") {
  if (have_device()) bad_arguments(kOnDevice);
}

// ---- the CPU's own

TEST_CASE("cpu: standard attention in float64") {
  const Index Nq = 9, Nk = 23, d = 7;
  const auto [Q, K, V] = random_head<double>(Nq, Nk, d);
  Matrix<double> O = Matrix<double>::Constant(Nq, d, NAN);
  const Tiling tile{.Br = 4, .Bc = 8};
  CHECK(standard_attention_cpu<double>(Q, K, V, O, tile) == predict_standard(Nq, Nk, d, tile));
  check_close(O, reference_attention(Q, K, V).O, kFloat64);
}

TEST_CASE("cpu: rows and columns of wider matrices are read and written in place") {
  const Index Nq = 5, Nk = 7, d = 3;
  const auto wide_Q = random_matrix<float>(Nq + 2, d + 3, 0, 0),
             wide_K = random_matrix<float>(Nk + 2, d + 2, 0, 1),
             wide_V = random_matrix<float>(Nk + 2, d + 1, 0, 2);
  Floats wide_O = Floats::Constant(Nq + 2, d + 2, 77);
  const Floats Q = wide_Q.block(1, 2, Nq, d), K = wide_K.block(1, 1, Nk, d),
               V = wide_V.block(2, 0, Nk, d);
  const Tiling tile{.Br = 2, .Bc = 3};
  const Counts counts =
      standard_attention_cpu<float>(wide_Q.block(1, 2, Nq, d), wide_K.block(1, 1, Nk, d),
                                    wide_V.block(2, 0, Nk, d), wide_O.block(1, 1, Nq, d), tile);
  CHECK(counts == predict_standard(Nq, Nk, d, tile));
  check_close(wide_O.block(1, 1, Nq, d), exact(Q, K, V), kFloat32);
  wide_O.block(1, 1, Nq, d).setConstant(77);
  CHECK((wide_O.array() == 77).all());
}

TEST_CASE("cpu: a walk without statistics moves none") {
  const Head h = random_head(5, 6, 2);
  Floats O = Floats::Zero(5, 2);
  Vector<float> none, other;
  const Tiling tile{.Br = 2, .Bc = 4};
  Counts q_outer = predict_q_outer(5, 6, 2, tile), kv_outer = predict_kv_outer(5, 6, 2, tile);
  q_outer.statistics_writes = kv_outer.statistics_reads = kv_outer.statistics_writes = 0;
  CHECK(walk_q_outer_cpu(h.Q, h.K, h.V, O, none, tile) == q_outer);
  CHECK(walk_kv_outer_cpu(h.Q, h.K, h.V, O, none, other, tile) == kv_outer);
  Vector<float> wrong = constant(4, 0.0f), right = constant(5, 0.0f);
  CHECK(message_of([&] { walk_q_outer_cpu(h.Q, h.K, h.V, O, wrong, tile); }) ==
        "LSE must have Nq = 5 elements or none, found 4");
  CHECK(message_of([&] { walk_kv_outer_cpu(h.Q, h.K, h.V, O, wrong, right, tile); }) ==
        "m must have Nq = 5 elements or none, found 4");
  CHECK(message_of([&] { walk_kv_outer_cpu(h.Q, h.K, h.V, O, right, none, tile); }) ==
        "m and l go together");
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  const Head h = random_head(5, 9, 4);
  const Tiling huge{.Br = INT64_MAX, .Bc = INT64_MAX}, whole{.Br = 5, .Bc = 9};
  CHECK(*standard_on_cpu(h, huge).counts == predict_standard(5, 9, 4, whole));
  CHECK(*q_outer_on_cpu(h, huge).counts == predict_q_outer(5, 9, 4, whole));
  CHECK(*kv_outer_on_cpu(h, huge).counts == predict_kv_outer(5, 9, 4, whole));
  CHECK(predict_kv_outer(5, 9, 4, huge) == predict_kv_outer(5, 9, 4, whole));
}

// ---- the device's own

TEST_CASE("device: what does not fit on chip is refused with both numbers") {
  if (!have_device()) return;
  const Head h = random_head(2, 2, 256);
  const Tiling tile{.Br = 300, .Bc = 300}, huge{.Br = INT64_MAX, .Bc = INT64_MAX};
  const std::string tiles = "tiles of Br = 300, Bc = 300 with d = 256";
  CHECK(message_of([&] { standard_on_device(h, tile); }) == does_not_fit(tiles, 614400));
  CHECK(message_of([&] { q_outer_on_device(h, tile); }) == does_not_fit(tiles, 1228800));
  CHECK(message_of([&] { kv_outer_on_device(h, tile); }) == does_not_fit(tiles, 1228800));
  for (const auto& algorithm : {kOnDevice.standard, kOnDevice.q_outer, kOnDevice.kv_outer}) {
    CHECK_THROWS_AS(algorithm(h, huge), std::invalid_argument);
  }
  const Index Nk = device_limits().shared_bytes_per_block / 4 + 1;
  const std::string row = message_of([&] { standard_on_device(random_head(1, Nk, 1), {}); });
  CHECK(row.rfind("the " + std::to_string(Nk) + " scores of a row need ", 0) == 0);
}

TEST_CASE("device: one pass at a time and their arguments") {
  if (!have_device()) return;
  const Head h = random_head(5, 6, 3);
  const DeviceHead on(h);
  DeviceMatrix<float> S(5, 6), O(5, 3), narrow(5, 5);
  const Tiling tile{.Br = 2, .Bc = 4};
  standard_scores_cuda(on.Q, on.K, S, tile, 0.5f);
  check_close(to_host(S), Floats(0.5f * (h.Q.lazyProduct(h.K.transpose()))), kFloat32);
  standard_softmax_cuda(S);
  check_close(to_host(S).rowwise().sum(), constant(5, 1.0f), kFloat32);
  standard_values_cuda(S, on.V, O, tile);
  check_close(to_host(O), exact(h.Q, h.K, h.V, 0.5), kFloat32);
  CHECK(message_of([&] { standard_scores_cuda(on.Q, on.K, narrow, tile, 1.0f); }) ==
        "S must be [5, 6], found [5, 5]");
  CHECK(message_of([&] { standard_values_cuda(narrow, on.V, O, tile); }) ==
        "P must be [5, 6], found [5, 5]");
  DeviceArray<float> wrong(4), right(5), none;
  CHECK(message_of([&] { walk_q_outer_cuda(on.Q, on.K, on.V, O, wrong, tile); }) ==
        "LSE must have Nq = 5 elements or none, found 4");
  CHECK(message_of([&] { walk_kv_outer_cuda(on.Q, on.K, on.V, O, right, wrong, tile); }) ==
        "l must have Nq = 5 elements or none, found 4");
  CHECK(message_of([&] { walk_kv_outer_cuda(on.Q, on.K, on.V, O, right, none, tile); }) ==
        "m and l go together");
}

TEST_CASE("device: counts and results do not depend on the order of threads") {
  if (!have_device()) return;
  const Head h = integer_head(9, 21, 5);
  const Tiling tile{.Br = 4, .Bc = 8};
  const Outcome standard = standard_on_device(h, tile), q_outer = q_outer_on_device(h, tile),
                kv_outer = kv_outer_on_device(h, tile);
  in_other_thread_orders([&] {
    const Outcome again = standard_on_device(h, tile);
    CHECK(again.counts == standard.counts);
    CHECK(same_bits(again.O, standard.O));
    CHECK(same_bits(q_outer_on_device(h, tile).O, q_outer.O));
    CHECK(same_bits(kv_outer_on_device(h, tile).O, kv_outer.O));
  });
}

// ---- formulas

TEST_CASE("cpu: predicted totals at N = 1024 K21") {
  const Index N = 1024, d = 64;
  const Tiling tile{.Br = 128, .Bc = 64};
  // flash-attention 1705
  CHECK(predict_q_outer(N, N, d, tile).total() == 1180672);
  CHECK(predict_kv_outer(N, N, d, tile).total() == 3342336);
  CHECK(predict_standard(N, N, d, {.Br = N, .Bc = 64}).total() == 4456448);
  CHECK(predict_standard(N, N, d, tile).total() == 5373952);
  // E15: orders by what they do. Neither always moves less
  const Counts q_outer = predict_q_outer(N, N, d, tile);
  CHECK(q_outer.reads + q_outer.writes == 1179648);
  CHECK(predict_kv_outer(N, N, d, {.Br = 64, .Bc = 128}).total() == 1736704);
  const Tiling wide{.Br = 64, .Bc = 128}, square{.Br = 64, .Bc = 64};
  CHECK(predict_kv_outer(N, N, d, wide).total() < predict_q_outer(N, N, d, wide).total());
  CHECK(predict_kv_outer(N, N, d, square).total() > predict_q_outer(N, N, d, square).total());
}

TEST_CASE("cpu: predictions for sizes that are no sizes are refused") {
  for (const auto& predict :
       {predict_standard, predict_q_outer, predict_kv_outer, predict_notes}) {
    CHECK(message_of([&] { predict(-1, 1, 1, {}); }) == "Nq must be at least 0, found -1");
    CHECK(message_of([&] { predict(1, -1, 1, {}); }) == "Nk must be at least 0, found -1");
    CHECK(message_of([&] { predict(1, 1, 0, {}); }) == "d must be at least 1, found 0");
    CHECK(message_of([&] { predict(1, 1, 1, {.Br = 0}); }) == "Br must be at least 1, found 0");
    CHECK(message_of([&] { predict(1 << 30, 1 << 30, 256, {.Br = 1, .Bc = 1}); }) ==
          "the sizes are too large: their counts could pass 2^60");
    CHECK(message_of([&] { predict(INT64_MAX, INT64_MAX, 256, {}); }) ==
          "the sizes are too large: their counts could pass 2^60");
    CHECK(predict(1000000, 1000000, 64, {}).total() > 0);
  }
}

TEST_CASE("cpu: bytes by dtype") {
  const Counts counts{
      .reads = 1000, .writes = 100, .statistics_reads = 10, .statistics_writes = 1};
  for (const auto& [dtype, read, written] :
       {std::tuple<const char*, std::int64_t, std::int64_t>{"f32", 4040, 404},
        {"bf16", 2040, 204},
        {"f16", 2040, 204}}) {
    const Traffic bytes = bytes_moved(counts, bytes_per_element(dtype));
    CHECK(bytes.read_bytes == read);
    CHECK(bytes.written_bytes == written);
  }
  CHECK(message_of([] { bytes_per_element("f64"); }) ==
        "the dtype must be f32, bf16 or f16, found 'f64'");
}

TEST_CASE("cpu: tiles by the paper's rule") {
  const auto is = [](Tiling tile, std::int64_t Br, std::int64_t Bc) {
    return tile.Br == Br && tile.Bc == Bc;
  };
  CHECK(is(choose_tiles_q_outer(25600, 64), 100, 64));   // M / 4d = 100; at most d
  CHECK(is(choose_tiles_kv_outer(25600, 64), 64, 100));  // as printed, K/V outside
  CHECK(is(choose_tiles_q_outer(25601, 64), 101, 64));   // rounded up
  CHECK(is(choose_tiles_q_outer(8192, 64), 32, 32));     // M / 4d below d
  CHECK(is(choose_tiles_kv_outer(8192, 64), 32, 32));
  CHECK(is(choose_tiles_q_outer(1, 64), 1, 1));
  CHECK_THROWS_AS(choose_tiles_q_outer(0, 64), std::invalid_argument);
  CHECK_THROWS_AS(choose_tiles_kv_outer(64, 0), std::invalid_argument);
  // the four matrix tiles fit M, and the scores ask for up to a quarter more
  CHECK(tile_elements({.Br = 4, .Bc = 2}, 2) == 2 * 8 + 2 * 4 + 8);
  for (const std::int64_t d : {16, 64, 128, 256}) {
    for (std::int64_t M = 4 * d; M <= 65536; M += 4 * d) {
      CAPTURE(M);
      CAPTURE(d);
      const Tiling tile = choose_tiles_q_outer(M, d);
      CHECK(2 * (tile.Br + tile.Bc) * d <= M);
      CHECK(tile_elements(tile, d) <= M + M / 4);
      CHECK(tile_elements(choose_tiles_kv_outer(M, d), d) == tile_elements(tile, d));
    }
  }
  CHECK(is(default_square_tiles(58112, 64), 64, 64));
  CHECK(is(default_square_tiles(58112, 256), 32, 32));
  CHECK(is(default_square_tiles(4 * 64 + 1, 64), 1, 1));
  CHECK(is(default_square_tiles(1, 256), 1, 1));
  CHECK_THROWS_AS(tile_elements({.Br = INT64_MAX, .Bc = 1}, 1), std::invalid_argument);
}

// ---- errata: the wrong versions really give what the lesson says

namespace {

// What the notes' formula describes: every pair of tiles loads Q_i again.
Counts walk_reloading_Q(const Head& h, Tiling tile) {
  Counts counts;
  Floats O = Floats::Zero(h.Q.rows(), h.Q.cols());
  const CountedMatrix<const float> Q(h.Q, counts.reads, counts.writes),
      K(h.K, counts.reads, counts.writes), V(h.V, counts.reads, counts.writes);
  const CountedMatrix<float> hbm_O(O, counts.reads, counts.writes);
  const Index Nq = h.Q.rows(), Nk = h.K.rows(), d = h.Q.cols();
  for (Index q_start = 0; q_start < Nq; q_start += tile.Br) {
    const Index rows = std::min(tile.Br, Nq - q_start);
    for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const Index cols = std::min(tile.Bc, Nk - k_start);
      Q.load(q_start, 0, rows, d);
      K.load(k_start, 0, cols, d);
      V.load(k_start, 0, cols, d);
    }
    hbm_O.store(q_start, 0, Floats::Zero(rows, d));
  }
  return counts;
}

// The softmax of rows as three passes that keep nothing on chip but m and l: S (Nq, Nk) -> P.
Counts three_pass_softmax(const Floats& S, Floats& P) {
  Counts counts;
  const CountedMatrix<const float> hbm_S(S, counts.reads, counts.writes);
  const CountedMatrix<float> hbm_P(P, counts.reads, counts.writes);
  for (Index r = 0; r < S.rows(); ++r) {
    const auto score = [&](Index c) { return hbm_S.load(r, c, 1, 1)(0, 0); };
    float m = -kInf<float>, l = 0;
    for (Index c = 0; c < S.cols(); ++c) m = std::max(m, score(c));
    for (Index c = 0; c < S.cols(); ++c) l += std::exp(score(c) - m);
    for (Index c = 0; c < S.cols(); ++c) {
      hbm_P.store(r, c, Floats::Constant(1, 1, std::exp(score(c) - m) / l));
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("cpu: errata E4 a formula that loads Q for every pair of tiles") {
  // N^2 d (1/Bc + 2/Br) + N d where the tiles divide
  const Index N = 1024, d = 64;
  const Tiling tile{.Br = 128, .Bc = 64};
  CHECK(predict_notes(N, N, d, tile).total() == N * N * d / 64 + 2 * N * N * d / 128 + N * d);
  CHECK(predict_notes(N, N, d, tile).total() == 2162688);  // and q_outer moves 1179648
  // it counts an order that nobody would write
  for (const auto& [Nq, Nk, width] :
       {std::array<Index, 3>{8, 8, 2}, {5, 7, 3}, {9, 4, 1}, {0, 3, 2}, {3, 0, 2}}) {
    for (const Tiling t : {Tiling{.Br = 4, .Bc = 2}, {.Br = 2, .Bc = 3}, {.Br = 64, .Bc = 1}}) {
      CHECK(walk_reloading_Q(random_head(Nq, Nk, width), t) == predict_notes(Nq, Nk, width, t));
    }
  }
  // at most 1.5 times too much where Br = Bc: 3 T + 1 against 2 T + 2
  double largest = 0;
  for (const Index size : {1, 5, 64, 1000, 16384}) {
    for (const Index B : {1, 2, 16, 64, 100, 20000}) {
      const Counts right = predict_q_outer(size, size, d, {.Br = B, .Bc = B});
      const double overcount =
          static_cast<double>(predict_notes(size, size, d, {.Br = B, .Bc = B}).total()) /
          static_cast<double>(right.reads + right.writes);
      CHECK(overcount >= 1);
      CHECK(overcount < 1.5);
      largest = std::max(largest, overcount);
    }
  }
  CHECK(largest > 1.49);
}

TEST_CASE("cpu: errata E5 square tiles of sqrt(M)") {
  const Index M = 25600, d = 64;  // 100 KB
  const double real_M = M, real_d = d;
  // orders of growth in units of N^2: the notes' d / sqrt(M), the paper's d^2 / M
  CHECK(real_d / std::sqrt(real_M) == doctest::Approx(0.40));
  CHECK(real_d * real_d / real_M == doctest::Approx(0.16));

  // the notes' tiles: S alone fills M, and all tiles together need 2.6 times as much
  const Tiling notes = choose_tiles_notes(M);
  CHECK(notes.Br == 160);
  CHECK(notes.Bc == 160);
  CHECK(notes.Br * notes.Bc == M);
  CHECK(tile_elements(notes, d) == 66560);
  for (const std::int64_t small : {1, 2, 3, 4, 8, 9, 10, 25599}) {
    const std::int64_t B = choose_tiles_notes(small).Br;
    CHECK(B * B <= small);
    CHECK((B + 1) * (B + 1) > small);
  }
  CHECK_THROWS_AS(choose_tiles_notes(0), std::invalid_argument);

  // with constants: 3 * 0.40 by the notes' formula; 8 * 0.16 and 12 * 0.16 are moved
  const Index N = 1600 * 64;  // the tiles divide, and terms in N vanish beside N^2
  const double N2 = static_cast<double>(N) * static_cast<double>(N);
  const auto in_N2 = [&](const Counts& counts) {
    return static_cast<double>(counts.total()) / N2;
  };
  CHECK(in_N2(predict_notes(N, N, d, notes)) == doctest::Approx(1.20).epsilon(0.01));
  CHECK(in_N2(predict_q_outer(N, N, d, choose_tiles_q_outer(M, d))) ==
        doctest::Approx(1.28).epsilon(0.01));
  Counts kv_outer = predict_kv_outer(N, N, d, choose_tiles_kv_outer(M, d));
  kv_outer.statistics_reads = kv_outer.statistics_writes = 0;
  CHECK(in_N2(kv_outer) == doctest::Approx(1.92).epsilon(0.01));

  // four times the memory: a quarter of the traffic, where the notes promise half
  const auto q_outer = [&](Index memory) {
    return in_N2(predict_q_outer(N, N, d, choose_tiles_q_outer(memory, d)));
  };
  const auto by_notes = [&](Index memory) {
    return in_N2(predict_notes(N, N, d, choose_tiles_notes(memory)));
  };
  CHECK(q_outer(M) / q_outer(4 * M) == doctest::Approx(4).epsilon(0.01));
  CHECK(by_notes(M) / by_notes(4 * M) == doctest::Approx(2).epsilon(0.01));
}

TEST_CASE("cpu: errata E23 two reads of the scores need a row on chip") {
  const Index Nq = 6, Nk = 11, d = 4;
  const Head h = random_head(Nq, Nk, d);
  const Floats S = 0.5f * (h.Q.lazyProduct(h.K.transpose()));
  Floats P(Nq, Nk);
  // one pass for the maximum, one for the sum, one for the weights
  const Counts counts = three_pass_softmax(S, P);
  CHECK(counts == Counts{.reads = 3 * Nq * Nk, .writes = Nq * Nk});
  check_close(Floats(P.lazyProduct(h.V)), exact(h.Q, h.K, h.V, 0.5), kFloat32);
  // with Q, K, V and P that is 4 Nq Nk; a row on chip saves two of them
  const Tiling whole{.Br = Nq, .Bc = Nk};
  const Counts with_row = *standard_on_cpu(h, whole).counts;
  CHECK(with_row.reads == Nq * d + 2 * Nk * d + 2 * Nq * Nk);
  CHECK(with_row.reads + counts.reads - Nq * Nk == Nq * d + 2 * Nk * d + 4 * Nq * Nk);
}

// ---- the executable

namespace {

// The JSON of one algorithm; counted is false on a GPU.
std::string algorithm_json(const std::string& name, const Counts& c, bool counted) {
  const auto number = [&](std::int64_t n) {
    return counted ? std::to_string(n) : std::string("null");
  };
  return "\"" + name + "\":{\"reads\":" + number(c.reads) + ",\"writes\":" + number(c.writes) +
         ",\"predicted_reads\":" + std::to_string(c.reads) +
         ",\"predicted_writes\":" + std::to_string(c.writes) +
         ",\"statistics_reads\":" + number(c.statistics_reads) +
         ",\"statistics_writes\":" + number(c.statistics_writes) + "}";
}

void json_of_all_three(const std::string& device) {
  const bool counted = device != "cuda";
  const Tiling tile{.Br = 4, .Bc = 2};
  const Traffic bytes = bytes_moved(predict_kv_outer(9, 7, 3, tile), 2);
  const ProgramResult r =
      run(words("--n 9 --nk 7 --d 3 --br 4 --bc 2 --dtype bf16 --json"), {"--device", device});
  check_prints(r,
               {"\"nq\":9,\"nk\":7,\"d\":3,\"dtype\":\"bf16\"", "\"device\":\"" + device + "\"",
                "\"algorithms\":{" +
                    algorithm_json("standard", predict_standard(9, 7, 3, tile), counted) + "," +
                    algorithm_json("q_outer", predict_q_outer(9, 7, 3, tile), counted) + "," +
                    algorithm_json("kv_outer", predict_kv_outer(9, 7, 3, tile), counted) + "}",
                "\"kv_outer\":{\"br\":4,\"bc\":2}",
                "\"kv_outer\":{\"read\":" + std::to_string(bytes.read_bytes) +
                    ",\"written\":" + std::to_string(bytes.written_bytes) + "}"});

  check_prints(
      run(words("--n 8 --d 2 --br 4 --bc 2 --order kv_outer --json"), {"--device", device}),
      "\"algorithms\":{" +
          algorithm_json("kv_outer", predict_kv_outer(8, 8, 2, tile), counted) + "}");
}

void real_data(const std::string& device) {
  const std::vector<Golden> heads = goldens("real");
  const Golden& g = heads.front();
  const TemporaryFolder folder;
  const std::string out = folder.file("out/deep");
  check_prints(run_on(device, input_files(g.folder, {"q", "k", "v"}), out),
               "\"nq\":" + std::to_string(g.Q.rows()));
  check_close(load_matrix<float>(out, "o"), g.O, kFloat32);
}

}  // namespace

TEST_CASE("cpu: executable demonstration shows the counts by hand") {
  check_prints(run({}),
               {"standard   formula                  208       144           0           0",
                "             CPU                       80        16           0           8",
                "kv_outer   formula                  160        64          64          64"});
}

TEST_CASE("cpu: executable counts as JSON") { json_of_all_three("cpu"); }
TEST_CASE("device: executable counts as JSON") {
  if (have_device()) json_of_all_three(device_kind());
}

TEST_CASE("cpu: executable on a real sentence meets PyTorch") { real_data("cpu"); }
TEST_CASE("device: executable on a real sentence meets PyTorch") {
  if (have_device()) real_data(device_kind());
}

TEST_CASE("cpu: executable takes f8 input in float64 and keeps its type") {
  const TemporaryFolder folder;
  const auto [Q, K, V] = random_head<double>(5, 7, 3);
  const Matrix<double> expected = reference_attention(Q, K, V, {.scale = 0.25}).O;
  const std::string out = folder.file("out");
  const Arguments arguments =
      joined(put_inputs(folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}}),
             {"--br", "2", "--scale", "0.25", "--out", out});
  check_prints(run(arguments), "wrote");
  check_close(load_matrix<double>(out, "o"), expected, kFloat64);
  if (!device_available()) return;
  check_prints(run(arguments, {"--device", device_kind()}), "wrote");  // rounded to float32
  check_close(load_matrix<double>(out, "o"), expected, kFloat32);
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto check = [&](Index Nq, Index, const Arguments& inputs, const std::string& device) {
    CHECK(run_on(device, inputs, folder.file("out")).err == "");
    check_close(load_matrix<float>(folder.file("out"), "o"), Floats::Zero(Nq, 4), {0, 0});
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable chooses tiles for an SRAM") {
  // 102400 bytes are 25600 floats: M / 4d = 100; as bf16 51200 elements: 200
  check_prints(
      run(words("--n 4 --sram 102400 --json")),
      "\"tiles\":{\"standard\":{\"br\":100,\"bc\":64},\"q_outer\":{\"br\":100,\"bc\":64},"
      "\"kv_outer\":{\"br\":64,\"bc\":100}}");
  check_prints(run(words("--n 4 --sram 102400 --dtype bf16 --order kv_outer --json")),
               "\"tiles\":{\"kv_outer\":{\"br\":64,\"bc\":200}}");
  // Br = Bc = the largest power of two up to 64 that fits
  check_prints(run(words("--n 4 --d 256 --order q_outer --json")),
               "\"tiles\":{\"q_outer\":{\"br\":32,\"bc\":32}}");
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  check_refused_heads();
  check_refused(words("--n -1"), "--n");
  check_refused(words("--order v2"), "--order");
  check_refused(words("--dtype f64"), "--dtype");
  check_refused(words("--sram 0"), "--sram");
  check_refused(words("--sram 3"), "--sram: 3 bytes hold no element of type f32");
  check_refused(words("--sram 4096 --br 4"), "--sram and --br cannot be combined");
  check_refused({"--order", "q_outer", "--out", TemporaryFolder().file("out")}, "--out");
  check_refused(words("--scale 1e300 --n 4"), "scale");
  check_refused(words("--causal"), "--causal");
  check_refused(words("--device gpu"), "--device");
  // more than a run counts in reasonable time: refused before anything is allocated
  check_refused(words("--n 1000000"), "on --device cpu the limit is 2000000000");
  check_refused(words("--n 2147483647 --br 1"), "could pass 2^60");
  if (simulated()) {
    check_refused(words("--device sim --n 4 --br 4096 --bc 64"), "232448");
    check_refused(words("--device sim --n 1 --nk 60000 --d 1"),
                  "the 60000 scores of a row need");
  }
}

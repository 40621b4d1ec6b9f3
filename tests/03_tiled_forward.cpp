// Chapter 03: the tiled forward pass, on the CPU and on the device, against naive attention in
// float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include "chapters/03_tiled_forward/tiled_forward.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <functional>

#include "chapters/02_io_counting/predict.hpp"
#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"
#include "common/device/eigen.hpp"
#include "tests/03_tiled_forward_cuda.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

using Scale = std::optional<double>;
using Forward =
    std::function<Floats(const Floats& Q, const Floats& K, const Floats& V, Tiling, Scale)>;

// Outputs start as NaN, and inputs must come back unchanged.
Floats on_cpu(const Floats& Q, const Floats& K, const Floats& V, Tiling tile, Scale scale) {
  Floats O = Floats::Constant(Q.rows(), Q.cols(), NAN);
  check_unchanged([&] { tiled_forward_cpu<float>(Q, K, V, O, tile, scale); }, Q, K, V);
  return O;
}

Floats on_device(const Floats& Q, const Floats& K, const Floats& V, Tiling tile, Scale scale) {
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(Q.rows(), Q.cols());  // a new array is NaN
  tiled_forward_cuda(device_Q, device_K, device_V, O, tile, scale);
  check_holds(device_Q, Q, device_K, K, device_V, V);
  return to_host(O);
}

Matrix<double> exact(const Floats& Q, const Floats& K, const Floats& V, Scale scale = {}) {
  return reference(Q, K, V, {.scale = scale}).O;
}

// ---- bodies that run on both devices

void ragged_sizes(const Forward& forward) {
  for (const Index d : {1, 3, 20}) {
    CAPTURE(d);
    each_size({0, 1, 3, 4, 5, 9}, {0, 1, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
      const auto [Q, K, V] = random_head(Nq, Nk, d);
      check_close(forward(Q, K, V, {.Br = 4, .Bc = 8}, {}), exact(Q, K, V), kFloat32);
    });
  }
}

void head_dimensions(const Forward& forward) {
  for (const Index d : {1, 31, 32, 33, 40, 64, 72, 80, 96, 100, 128, 255, 256}) {
    CAPTURE(d);
    const auto [Q, K, V] = random_head(10, 37, d);
    check_close(forward(Q, K, V, {.Br = 8, .Bc = 16}, {}), exact(Q, K, V), kFloat32);
  }
}

void tile_shapes(const Forward& forward) {
  const auto [Q, K, V] = random_head(37, 53, 24);
  const Matrix<double> expected = exact(Q, K, V);
  for (const Index Br : {1, 2, 7, 16, 36, 37, 38, 64}) {
    for (const Index Bc : {1, 3, 16, 32, 33, 52, 53, 54, 64, 100}) {
      CAPTURE(Br);
      CAPTURE(Bc);
      check_close(forward(Q, K, V, {.Br = Br, .Bc = Bc}, {}), expected, kFloat32);
    }
  }
}

void scales(const Forward& forward) {
  const auto [Q, K, V] = random_head(9, 21, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 0.01, 3.0}) {
    CAPTURE(scale);
    check_close(forward(Q, K, V, {.Br = 4, .Bc = 8}, scale), exact(Q, K, V, scale), kFloat32);
  }
  CHECK_THROWS_AS(forward(Q, K, V, {}, std::nan("")), std::invalid_argument);
  CHECK_THROWS_AS(forward(Q, K, V, {}, 1e300), std::invalid_argument);
}

void goldens_agree(const Forward& forward) {
  for (const std::string set : {"forward", "real"}) {
    for (const Golden& g : goldens(set)) {
      CAPTURE(g.name);
      check_close(forward(g.Q, g.K, g.V, {.Br = 16, .Bc = 32}, g.scale), g.O, kFloat32);
    }
  }
}

// The maximum falls from tile to tile, by enough that a rescale relative to the tile's own
// maximum instead of the running one overflows; then it rises.
void moving_maximum(const Forward& forward) {
  const Floats V = column({1, 2, 3, 4});
  for (const auto& scores :
       {std::vector<float>{200, 0, -200, -400}, {-400, -200, 0, 200}, {0, 200, -200, 100}}) {
    const Floats Q = column({1}), K = column(scores);
    check_close(forward(Q, K, V, {.Br = 1, .Bc = 1}, 1.0), exact(Q, K, V, 1.0), kFloat32);
    check_close(forward(Q, K, V, {.Br = 1, .Bc = 2}, 1.0), exact(Q, K, V, 1.0), kFloat32);
  }
}

void constant_values(const Forward& forward) {
  for (const Index d : {31, 32, 33, 64, 100, 128}) {
    auto [Q, K, V] = random_head(5, 45, d, 7);
    V.setOnes();
    check_close(forward(Q, K, V, {.Br = 4, .Bc = 16}, {}), Matrix<double>::Ones(5, d),
                kFloat32);
  }
}

// Keys and values in another order, together; a number added to all scores of a row.
void symmetries(const Forward& forward) {
  auto [Q, K, V] = random_head(6, 30, 8, 3);
  const Matrix<double> expected = exact(Q, K, V, 0.5);
  const Floats K_reversed = K.colwise().reverse(), V_reversed = V.colwise().reverse();
  check_close(forward(Q, K_reversed, V_reversed, {.Br = 4, .Bc = 8}, 0.5), expected, kFloat32);

  Q.col(0).setConstant(8);  // channel 0 adds 8 * 4 * 0.5 = 16 to every score
  K.col(0).setZero();
  const Floats before = forward(Q, K, V, {.Br = 4, .Bc = 8}, 0.5);
  K.col(0).setConstant(4);
  check_close(forward(Q, K, V, {.Br = 4, .Bc = 8}, 0.5), before, {1e-5, 0});
}

// No key, or only keys of score -inf: O = 0, whatever V holds. One finite score among them:
// that key.
void rows_without_keys(const Forward& forward) {
  const float inf = kInf<float>;
  check_close(forward(column({1, 2}), Floats(0, 1), Floats(0, 1), {}, 1.0),
              Matrix<double>::Zero(2, 1), {0, 0});
  for (const auto& values : {std::vector<float>{1, 2, 3}, {NAN, 2, inf}}) {
    check_close(forward(column({1}), column({-inf, -inf, -inf}), column(values),
                        {.Br = 1, .Bc = 2}, 1.0),
                column({0}), {0, 0});
  }
  // K01 flash-attention 2082: the guard's 0 is not the maximum, or exp(-200 - 0) would be 0
  check_close(forward(column({1}), column({-inf, -inf, -200}), column({1, 2, 7}),
                      {.Br = 1, .Bc = 2}, 1.0),
              column({7}), {0, 0});
  for (Index j = 0; j < 3; ++j) {
    Floats K = column({-inf, -inf, -inf}), V = column({1, 2, 3});
    K(j, 0) = 5;
    V(j, 0) = 7;
    check_close(forward(column({1}), K, V, {.Br = 1, .Bc = 2}, 1.0), column({7}), {0, 0});
  }
}

// K13: NaN spreads to the rows that see it and to no other; +inf scores make their row NaN.
void nan_and_infinity(const Forward& forward) {
  const Tiling tile{.Br = 2, .Bc = 2};
  {  // lattice 789: NaN in one query row
    const Floats O = forward(column({1, NAN, 1}), column({1, 1}), column({3, 5}), tile, 1.0);
    check_close(O, doubles({4, NAN, 4}), kFloat32, true);
  }
  // NaN in a key, in each position: every row sees it
  for (Index j = 0; j < 5; ++j) {
    CAPTURE(j);
    Floats K = column({1, 2, 3, 4, 5});
    K(j, 0) = NAN;
    const Floats O = forward(column({1, 0}), K, column({1, 2, 3, 4, 5}), tile, 1.0);
    check_close(O, doubles({NAN, NAN}), kFloat32, true);
  }
  {  // NaN in one channel of one value: that channel only
    Floats V = Floats::Ones(3, 2);
    V(1, 1) = NAN;
    const Floats O = forward(Floats::Ones(2, 2), Floats::Ones(3, 2), V, tile, 1.0);
    check_close(O, Matrix<double>{{1, NAN}, {1, NAN}}, kFloat32, true);
  }
  // a score that overflows, in each position
  for (Index j = 0; j < 3; ++j) {
    Floats K = column({0, 0, 0});
    K(j, 0) = 3e38f;
    const Floats O = forward(column({10}), K, column({1, 2, 3}), tile, 1.0);
    check_close(O, doubles({NAN}), kFloat32, true);
  }
}

void reported_cases(const Forward& forward) {
  const auto row = [&](std::vector<float> scores, std::vector<float> values, Index Bc) {
    return forward(column({1}), column(scores), column(values), {.Br = 1, .Bc = Bc}, 1.0)(0, 0);
  };
  // K01 flashinfer 4267: logits below a finite start of the maximum
  CHECK(row({-60000, -60001}, {1, 3}, 1) == doctest::Approx(1.537883).epsilon(1e-5));
  CHECK(row({-3e38f, -3e38f}, {1, 3}, 1) == 2);
  // K04 flashinfer 3716: padding lanes counted without a causal mask
  CHECK(row({0, 0, 0}, {1, 2, 3}, 4) == doctest::Approx(2).epsilon(1e-6));
  // K08 pytorch 181645
  CHECK(row({0, 1}, {0, 1}, 4) == doctest::Approx(0.731059).epsilon(1e-5));
  // K15 pytorch 121558: the exponent of the maximum is exactly 0, also for huge scores
  CHECK(forward(column({133120}), column({133120}), column({1}), {}, 0.25)(0, 0) == 1);
  // K15 ggml 7805: q k beyond float16
  CHECK(forward(column({300}), column({300, 299}), column({1, 2}), {}, 1.0 / 256)(0, 0) ==
        doctest::Approx(1.236516).epsilon(1e-5));
  // K15 NNlib 506: large negative scores
  CHECK(forward(column({-1000}), Floats::Ones(512, 1), Floats::Ones(512, 1), {}, 1.0)(0, 0) ==
        1);
  // K20 tilelang 1148: the running maximum never decreases
  CHECK(row({200, 0}, {1, 2}, 1) == 1);
  // K20 flash-attention 2342
  CHECK(row({0, 2, 1, 3}, {1, 2, 3, 4}, 2) == doctest::Approx(3.342914).epsilon(1e-5));
  // K20 tilelang 2867: Bc and d differ, both ways
  for (const Index d : {2, 4}) {
    const auto [Q, K, V] = random_head(3, 9, d);
    check_close(forward(Q, K, V, {.Br = 2, .Bc = 6 - d}, {}), exact(Q, K, V), kFloat32);
  }
  // K05 triton 621: all channels of the head dimension count
  Floats K = Floats::Zero(2, 128), V = Floats::Zero(2, 128);
  K.row(0).tail(64).setOnes();
  V.row(0).setConstant(10);
  V.row(1).setConstant(20);
  check_close(forward(Floats::Ones(1, 128), K, V, {}, 1.0 / 8),
              Matrix<double>::Constant(1, 128, 10.003354), {1e-4, 0});
}

// K19 TransformerEngine 3216: real activations have outlier channels and a common offset.
void outlier_channels(const Forward& forward) {
  auto [Q, K, V] = random_head(33, 65, 32, 5);
  K.col(3) *= 50;
  V.col(7) *= 50;
  K.array() += 3;
  V.array() += 100;
  check_close(forward(Q, K, V, {.Br = 16, .Bc = 16}, {}), exact(Q, K, V), kFloat32);
}

// K04 jax 27224, K16 ggml 13438: the same bits at every run, with memory left over from other
// work.
void repeatable(const Forward& forward) {
  const auto [Q, K, V] = random_head(70, 130, 40, 9);
  const Floats first = forward(Q, K, V, {.Br = 16, .Bc = 32}, {});
  for (int run = 0; run < 20; ++run) {
    forward(K, Q, Q, {.Br = 32, .Bc = 16}, 0.1);
    CHECK(same_bits(forward(Q, K, V, {.Br = 16, .Bc = 32}, {}), first));
  }
}

void bad_arguments(const Forward& forward) {
  const auto message = [&](const Floats& Q, const Floats& K, const Floats& V, Tiling tile) {
    return message_of([&] { forward(Q, K, V, tile, {}); });
  };
  // also K03 pytorch 174939: d = 0 is an argument error, never a signal
  check_refused_shapes(message);
  const auto [Q, K, V] = random_head(3, 4, 5);
  // K05 native-sparse-attention-triton 27: d_v != d is refused, not computed wrongly
  CHECK(message(Q, K, Floats::Zero(4, 6), {}) == "V must be [4, 5], found [4, 6]");
  CHECK(message(Q, K, V, {.Br = 4, .Bc = -1}) == "Bc must be at least 1, found -1");
  CHECK(message(Floats::Zero(2, 257), Floats::Zero(3, 257), Floats::Zero(3, 257), {}) ==
        "the head dimension d must be from 1 to 256, found 257");
}

// Keeps what an observer is shown.
struct Recorder : TileObserver<float> {
  struct Tile {
    Index row0, col0;
    Floats S, P, O;
    Vector<float> m, l, alpha;
  };
  void on_tile(const FoldedTile<float>& t) override {
    tiles.push_back({t.state.row0, t.state.col0, t.S, t.state.S, t.state.O, t.state.m,
                     t.state.l, t.state.alpha});
  }
  std::vector<Tile> tiles;
};

}  // namespace

TEST_CASE("cpu: the worked example of the lesson tile by tile") {
  Recorder recorder;
  Floats O(1, 1);
  tiled_forward_cpu<float>(column({1}), column({1, 3, 2, 4}), column({10, 20, 30, 40}), O,
                           {.Br = 1, .Bc = 2}, 1.0, &recorder);
  REQUIRE(recorder.tiles.size() == 2);
  const auto& [first, second] = std::pair(recorder.tiles[0], recorder.tiles[1]);
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-4); };
  check_close(first.S, Matrix<double>{{1, 3}}, {0, 0});
  CHECK(first.m[0] == 3);
  CHECK(first.alpha[0] == 0);
  CHECK(first.P(0, 0) == near(0.1353));
  CHECK(first.P(0, 1) == 1);
  CHECK(first.l[0] == near(1.1353));
  CHECK(first.O(0, 0) == near(21.3534));
  check_close(second.S, Matrix<double>{{2, 4}}, {0, 0});
  CHECK(second.m[0] == 4);
  CHECK(second.alpha[0] == near(0.3679));
  CHECK(second.P(0, 0) == near(0.1353));
  CHECK(second.l[0] == near(1.5530));
  CHECK(second.O(0, 0) == near(51.9155));
  CHECK(O(0, 0) == near(33.4291));
}

TEST_CASE("cpu: every ragged size agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every ragged size agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device);
}

TEST_CASE("cpu: every head dimension agrees with naive attention") { head_dimensions(on_cpu); }
TEST_CASE("device: every head dimension agrees with naive attention") {
  if (have_device()) head_dimensions(on_device);
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

TEST_CASE("cpu: the running maximum may fall and rise") { moving_maximum(on_cpu); }
TEST_CASE("device: the running maximum may fall and rise") {
  if (have_device()) moving_maximum(on_device);
}

TEST_CASE("cpu: constant values come back in every channel") { constant_values(on_cpu); }
TEST_CASE("device: constant values come back in every channel") {
  if (have_device()) constant_values(on_device);
}

TEST_CASE("cpu: order of keys and shift of scores change nothing") { symmetries(on_cpu); }
TEST_CASE("device: order of keys and shift of scores change nothing") {
  if (have_device()) symmetries(on_device);
}

TEST_CASE("cpu: rows without keys are zero") { rows_without_keys(on_cpu); }
TEST_CASE("device: rows without keys are zero") {
  if (have_device()) rows_without_keys(on_device);
}

TEST_CASE("cpu: NaN and infinity reach the rows that see them") { nan_and_infinity(on_cpu); }
TEST_CASE("device: NaN and infinity reach the rows that see them") {
  if (have_device()) nan_and_infinity(on_device);
}

TEST_CASE("cpu: reported cases K01 K04 K05 K08 K15 K20") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K01 K04 K05 K08 K15 K20") {
  if (have_device()) reported_cases(on_device);
}

TEST_CASE("cpu: outlier channels and offsets K19") { outlier_channels(on_cpu); }
TEST_CASE("device: outlier channels and offsets K19") {
  if (have_device()) outlier_channels(on_device);
}

TEST_CASE("cpu: the same bits at every run K04 K16") { repeatable(on_cpu); }
TEST_CASE("device: the same bits at every run K04 K16") {
  if (have_device()) repeatable(on_device);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(on_device);
}

// ---- the CPU's own

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Index Nk : {0, 1, 63, 64, 65, 129}) {
    const auto [Q, K, V] = random_head<double>(33, Nk, 16, 1);
    Matrix<double> O = Matrix<double>::Constant(33, 16, NAN);
    tiled_forward_cpu<double>(Q, K, V, O, {.Br = 8, .Bc = 64});
    check_close(O, reference_attention(Q, K, V).O, kFloat64);
  }
}

TEST_CASE("cpu: m and l after each tile K20 CUDATutorial 69") {
  Recorder recorder;
  Floats O(1, 1);
  tiled_forward_cpu<float>(column({1}), column({0, 2, 1, 3}), column({1, 2, 3, 4}), O,
                           {.Br = 1, .Bc = 2}, 1.0, &recorder);
  REQUIRE(recorder.tiles.size() == 2);
  CHECK(recorder.tiles[0].m[0] == 2);
  CHECK(recorder.tiles[0].l[0] == doctest::Approx(1.135335).epsilon(1e-5));
  CHECK(recorder.tiles[1].m[0] == 3);
  CHECK(recorder.tiles[1].l[0] == doctest::Approx(1.553002).epsilon(1e-5));
}

namespace {

// Weights too small for T: the scores are 0 once and `low` otherwise. With V huge or infinite
// where the weight is 0 (0 * inf is NaN), any weight that is not exactly 0 would show.
template <class T>
void weights_below_the_smallest_number(T low, T huge) {
  for (const Index Nk : {3, 16, 40, 64}) {
    for (const Index Bc : {1, 8, 64}) {
      CAPTURE(Nk);
      CAPTURE(Bc);
      Matrix<T> K = Matrix<T>::Constant(Nk, 1, low), V = Matrix<T>::Constant(Nk, 1, huge),
                O(1, 1);
      const Matrix<T> Q = Matrix<T>::Ones(1, 1);
      tiled_forward_cpu<T>(Q, K, V, O, {.Br = 1, .Bc = Bc}, 1.0);
      if (low == -kInf<T>) CHECK(O(0, 0) == 0);  // nothing seen
      K(0, 0) = 0;
      V(0, 0) = 5;
      tiled_forward_cpu<T>(Q, K, V, O, {.Br = 1, .Bc = Bc}, 1.0);
      CHECK(O(0, 0) == 5);
    }
  }
}

}  // namespace

TEST_CASE("cpu: weights that underflow are exactly 0 in either type and any tile") {
  weights_below_the_smallest_number<float>(-1000, 3e38f);
  weights_below_the_smallest_number<float>(-kInf<float>, 3e38f);
  weights_below_the_smallest_number<double>(-1000, 1.7e308);
  weights_below_the_smallest_number<double>(-kInf<double>, 1.7e308);
}

TEST_CASE("cpu: an exception of an observer reaches the caller") {
  struct Thrower : TileObserver<float> {
    void on_tile(const FoldedTile<float>&) override { throw std::runtime_error("seen enough"); }
  } thrower;
  const auto [Q, K, V] = random_head(10, 17, 6);
  Floats O(10, 6);
  CHECK_THROWS_WITH_AS(tiled_forward_cpu<float>(Q, K, V, O, {.Br = 4, .Bc = 8}, {}, &thrower),
                       "seen enough", std::runtime_error);
}

TEST_CASE("cpu: an observer sees every tile in order and changes nothing") {
  const auto [Q, K, V] = random_head(10, 17, 6);
  Recorder recorder;
  Floats O(10, 6);
  tiled_forward_cpu<float>(Q, K, V, O, {.Br = 4, .Bc = 8}, {}, &recorder);
  CHECK(same_bits(O, on_cpu(Q, K, V, {.Br = 4, .Bc = 8}, {})));
  REQUIRE(recorder.tiles.size() == 9);  // Tr = 3, Tc = 3
  for (Index t = 0; t < 9; ++t) {
    CHECK(recorder.tiles[static_cast<std::size_t>(t)].row0 == t / 3 * 4);
    CHECK(recorder.tiles[static_cast<std::size_t>(t)].col0 == t % 3 * 8);
  }
}

TEST_CASE("cpu: guard bands of NaN around every matrix K04 K13") {
  // K04 flash-attention-minimal 2: one query, one key, tiles of 32 x 32. K13 flash-attention
  // 1745: rows of K and V beyond the used length hold NaN or inf.
  for (const float filler : {NAN, kInf<float>}) {
    for (const Index N : {1, 2, 5, 33}) {
      const Index d = 6;
      const auto [Q, K, V] = random_head(N, N, d, 2);
      const auto banded = [&](const Floats& m) {
        Floats wide = Floats::Constant(N + 2, d + 2, filler);
        wide.block(1, 1, N, d) = m;
        return wide;
      };
      const Floats wide_Q = banded(Q), wide_K = banded(K), wide_V = banded(V);
      Floats wide_O = Floats::Constant(N + 2, d + 2, 77);
      tiled_forward_cpu<float>(wide_Q.block(1, 1, N, d), wide_K.block(1, 1, N, d),
                               wide_V.block(1, 1, N, d), wide_O.block(1, 1, N, d),
                               {.Br = 32, .Bc = 32});
      check_close(wide_O.block(1, 1, N, d), exact(Q, K, V), kFloat32);
      wide_O.block(1, 1, N, d).setConstant(77);
      CHECK((wide_O.array() == 77).all());
    }
  }
}

// ---- fold_tile by itself: visible counts, which chapter 03's own walk never varies

namespace {

struct Folded {
  double O, m, l;
};

// One query of 1 against keys that are their own scores, tile by tile; visible[t] keys of tile
// t.
Folded fold(const std::vector<std::vector<float>>& scores,
            const std::vector<std::vector<float>>& values, const std::vector<Index>& visible) {
  TileState<float> state(1, 1);
  for (std::size_t t = 0; t < scores.size(); ++t) {
    fold_tile<float>(state, column({1}), column(scores[t]), column(values[t]), 1.0f,
                     std::span<const Index>(&visible[t], 1));
  }
  normalise(state);
  return {state.O(0, 0), state.m[0], state.l[0]};
}

}  // namespace

TEST_CASE("cpu: fold_tile K01 first tiles hidden") {
  {  // pytorch 127055: early tiles hidden, later keys visible
    const Folded f = fold({{0, 0}, {0, 0}}, {{1, 2}, {3, 4}}, {0, 2});
    CHECK(f.O == 3.5);
    CHECK(f.l == 2);
  }
  {  // llama.cpp 6438: first tile hidden, last one ragged
    const Folded f = fold({{0, 0}, {0}}, {{9, 9}, {4}}, {0, 1});
    CHECK(f.O == 4);
    CHECK(f.m == 0);
    CHECK(f.l == 1);
  }
  {  // flash-attention 2082: the guard's 0 must not be kept as the running maximum
    const Folded f = fold({{-200, -200}, {-200, -200}}, {{1, 2}, {3, 4}}, {0, 2});
    CHECK(f.O == 3.5);
    CHECK(f.m == -200);
    CHECK(f.l == 2);
  }
  {  // a tile between that the row does not see leaves everything as it is
    const Folded f =
        fold({{0, 0}, {1, 1}, {9, 9}, {1, 1}}, {{1, 2}, {3, 4}, {9, 9}, {5, 6}}, {2, 2, 0, 2});
    CHECK(f.O == doctest::Approx((2 * std::exp(-1) * 1.5 + 2 * 3.5 + 2 * 5.5) /
                                 (2 * std::exp(-1) + 4)));
    CHECK(f.m == 1);
  }
  {  // nothing visible at all
    const Folded f = fold({{5, 5}, {5}}, {{1, 2}, {3}}, {0, 0});
    CHECK(f.O == 0);
    CHECK(f.m == -kInf<double>);
    CHECK(f.l == 0);
  }
  {  // lattice 373: a hidden key has weight 0, even where the visible one scores lower
    const Folded f = fold({{-20000, 0}}, {{1, 100}}, {1});
    CHECK(f.O == 1);
    CHECK(f.m == -20000);
  }
}

TEST_CASE("cpu: fold_tile keeps hidden keys out of the arithmetic K13 pytorch 101967") {
  for (const float filler : {NAN, kInf<float>, -kInf<float>}) {
    TileState<float> state(2, 1);
    const std::vector<Index> visible{1, 2};
    fold_tile<float>(state, column({1, 1}), column({1, filler}), column({3, filler}), 1.0f,
                     visible);
    normalise(state);
    CHECK(state.O(0, 0) == 3);
    CHECK(state.m[0] == 1);
    CHECK(state.l[0] == 1);
    if (std::isnan(filler)) {  // the row that does see it
      CHECK(std::isnan(state.O(1, 0)));
      CHECK(std::isnan(state.l[1]));
    }
  }
}

namespace {

using FoldOnce = std::function<Floats(const Floats& Q, const Floats& K, const Floats& V,
                                      const std::vector<Index>& visible)>;

Floats fold_once_on_cpu(const Floats& Q, const Floats& K, const Floats& V,
                        const std::vector<Index>& visible) {
  TileState<float> state(Q.rows(), Q.cols());
  fold_tile<float>(state, Q, K, V, 0.5f, visible);
  normalise(state);
  return state.O;
}

Floats fold_once_on_device(const Floats& Q, const Floats& K, const Floats& V,
                           const std::vector<Index>& visible) {
  const DeviceArray<int> counts(std::vector<int>(visible.begin(), visible.end()));
  DeviceMatrix<float> O(Q.rows(), Q.cols());
  DeviceArray<float> m(Q.rows()), l(Q.rows());
  fold_one_tile_cuda(to_device(Q), to_device(K), to_device(V), counts, O, m, l, 0.5f);
  return to_host(O);
}

// Rows that see different numbers of keys, in any order; what they do not see is NaN for all
// rows.
void partial_tiles(const FoldOnce& fold_once) {
  for (const auto& visible : std::vector<std::vector<Index>>{{0, 1, 5, 11, 12},
                                                             {12, 3, 0, 12, 5},
                                                             {12, 12, 12, 12, 11},
                                                             {4, 0, 4, 1, 2},
                                                             {0, 0, 0, 0, 0}}) {
    auto [Q, K, V] = random_head(5, 40, 4, 4);
    const Index most = *std::max_element(visible.begin(), visible.end());
    for (const Index cols : {Index{12}, Index{40}}) {
      Floats K_tile = K.topRows(cols), V_tile = V.topRows(cols);
      K_tile.bottomRows(cols - most).setConstant(NAN);
      V_tile.bottomRows(cols - most).setConstant(NAN);
      const Floats O = fold_once(Q, K_tile, V_tile, visible);
      for (Index r = 0; r < 5; ++r) {
        CAPTURE(r);
        const Index n = visible[static_cast<std::size_t>(r)];
        check_close(O.row(r), exact(Q.row(r), K.topRows(n), V.topRows(n), 0.5), kFloat32);
      }
    }
  }
}

}  // namespace

TEST_CASE("cpu: fold_tile in a partial tile agrees with one tile a row") {
  partial_tiles(fold_once_on_cpu);
}
TEST_CASE("device: fold_tile in a partial tile agrees with one tile a row") {
  if (have_device()) partial_tiles(fold_once_on_device);
}

TEST_CASE("cpu: 1 <= l <= Nk and the weight of the maximum is exactly 1") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const auto [Q, K, V] = random_head(7, 50, 8, seed, 3.0);
    const TileState<float> state = forward_q_tile<float>(Q, K, V, 0, 16, 1.0f);
    CHECK((state.l.array() >= 1).all());
    CHECK((state.l.array() <= 50).all());
  }
}

// ---- errata: the notes' versions really fail as the lesson says

namespace {

// The notes' update of one row (O, l, m), sections 3.1, 5.2 and 8: no guard, O / l at the end.
// Hidden scores are -inf, as their masked_fill leaves them.
double notes_row(const std::vector<std::vector<double>>& tiles,
                 const std::vector<std::vector<double>>& values) {
  double m = -kInf<double>, l = 0, O = 0;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const double m_new = std::max(m, *std::max_element(tiles[t].begin(), tiles[t].end()));
    O *= std::exp(m - m_new);
    l *= std::exp(m - m_new);
    for (std::size_t c = 0; c < tiles[t].size(); ++c) {
      const double p = std::exp(tiles[t][c] - m_new);
      l += p;
      O += p * values[t][c];
    }
    m = m_new;
  }
  return O / l;
}

}  // namespace

TEST_CASE("cpu: errata E6 without the guard a hidden first tile gives NaN") {
  const double inf = kInf<double>;
  // causal, N = 4, Bc = 2, Q = 0, V = 1..4, key tiles from right to left
  CHECK(std::isnan(notes_row({{-inf, -inf}, {0, -inf}}, {{3, 4}, {1, 2}})));
  CHECK(std::isnan(notes_row({{-inf, -inf}, {0, 0}}, {{3, 4}, {1, 2}})));
  CHECK(notes_row({{0, -inf}, {0, 0}}, {{3, 4}, {1, 2}}) == 2);
  CHECK(notes_row({{0, 0}, {0, 0}}, {{3, 4}, {1, 2}}) == 2.5);
  // the right version
  const std::vector<Index> seen_right{0, 0, 1, 2}, seen_left{1, 2, 2, 2};
  const double expected[] = {1, 1.5, 2, 2.5};
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(fold({{0, 0}, {0, 0}}, {{3, 4}, {1, 2}}, {seen_right[r], seen_left[r]}).O ==
          expected[r]);
  }
}

TEST_CASE("cpu: errata E7 without a key O / l is 0 / 0") {
  CHECK(std::isnan(notes_row({}, {})));
  CHECK(on_cpu(column({1}), Floats(0, 1), Floats(0, 1), {}, 1.0)(0, 0) == 0);
}

TEST_CASE("cpu: errata E12 keys past the end loaded as 0 and not masked get weight") {
  CHECK(notes_row({{-1, -1, -1, 0}}, {{1, 2, 3, 0}}) == doctest::Approx(1.049).epsilon(1e-3));
  CHECK(on_cpu(column({-1}), column({1, 1, 1}), column({1, 2, 3}), {.Br = 1, .Bc = 4}, 1.0)(
            0, 0) == doctest::Approx(2).epsilon(1e-6));
}

TEST_CASE("cpu: the rescale factor as FlashAttention-2 prints it is inverted") {
  // Algorithm 1, line 10: diag(exp(m_old - m_new))^-1 O. Scores 0 then 1, values 1 and 2, Bc
  // = 1.
  const double alpha = std::exp(-1.0), l = alpha + 1;
  const double printed = (1 / alpha * 1 + 2) / l, right = (alpha * 1 + 2) / l;
  CHECK(printed == doctest::Approx(3.449).epsilon(1e-3));
  CHECK(right == doctest::Approx(1.731).epsilon(1e-3));
  CHECK(on_cpu(column({1}), column({0, 1}), column({1, 2}), {.Br = 1, .Bc = 1}, 1.0)(0, 0) ==
        doctest::Approx(right).epsilon(1e-6));
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(100, 150, 64, 11);
  check_close(on_device(Q, K, V, {}, {}), on_cpu(Q, K, V, {}, {}), kFloat32);
}

TEST_CASE("device: tiles that do not fit are refused with both numbers K17") {
  if (!have_device()) return;
  // flash-attention 2750: head dimension 256 wants more than a block has
  const auto [Q, K, V] = random_head(2, 2, 256);
  const std::string expected = does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552);
  CHECK_THROWS_WITH_AS(on_device(Q, K, V, {.Br = 64, .Bc = 64}, {}), expected.c_str(),
                       std::invalid_argument);
  CHECK_THROWS_AS(on_device(Q, K, V, {.Br = INT64_MAX, .Bc = INT64_MAX}, {}),
                  std::invalid_argument);
  const Tiling fits = default_tiling(256, device_limits().shared_bytes_per_block);
  CHECK(fits.Br >= 16);
  check_close(on_device(Q, K, V, fits, {}), exact(Q, K, V), kFloat32);
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  const auto [Q, K, V] = random_head(5, 9, 4);
  check_close(on_cpu(Q, K, V, {.Br = INT64_MAX, .Bc = INT64_MAX}, {}), exact(Q, K, V),
              kFloat32);
}

// What makes a tiled pass worth the trouble: S alone would be 256 MiB.
TEST_CASE("cpu: memory does not grow with Nq times Nk") {
  const auto most_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto [Q, K, V] = random_head(8192, 8192, 1);
  const auto before = most_kib();
  const Floats O = on_cpu(Q, K, V, {}, {});
  CHECK(O.allFinite());
  CHECK(most_kib() - before < 64 * 1024);
}

TEST_CASE("cpu: the default tile is the largest power of two that fits") {
  CHECK(default_tiling(64, 232448).Br == 64);
  CHECK(default_tiling(128, 232448).Br == 64);
  CHECK(default_tiling(256, 232448).Br == 32);
  CHECK(default_tiling(256, 49152).Br == 8);
  CHECK(default_tiling(1, 100).Br == 1);
}

TEST_CASE("device: traffic is what the walk must move") {
  if (!have_device()) return;
  for (const auto& [Nq, Nk, d] : {std::array<Index, 3>{10, 17, 6},
                                  {8, 8, 2},
                                  {1, 33, 5},
                                  {33, 1, 3},
                                  {0, 9, 4},
                                  {9, 0, 4},
                                  {40, 64, 32}}) {
    for (const Tiling tile : {Tiling{.Br = 4, .Bc = 8},
                              {.Br = 1, .Bc = 1},
                              {.Br = 7, .Bc = 3},
                              {.Br = 32, .Bc = 5},
                              {.Br = 64, .Bc = 64}}) {
      const auto [Q, K, V] = random_head(Nq, Nk, d);
      const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
      DeviceMatrix<float> O(Nq, d);
      reset_device_traffic();
      tiled_forward_cuda(device_Q, device_K, device_V, O, tile);
      const auto traffic = device_traffic();
      if (!counted(traffic)) return;
      const Counts predicted = predict_q_outer(Nq, Nk, d, tile);  // but for LSE: chapter 05
      CHECK(traffic->read_bytes == 4 * predicted.reads);
      CHECK(traffic->written_bytes == 4 * predicted.writes);
    }
  }
}

// ---- the executable

namespace {

// Runs the executable on a golden head, and checks o.npy.
void program_on_real_data(const std::string& device) {
  int heads = 0;
  for (const Golden& g : goldens("real")) {
    if (++heads % 4 != 1) continue;  // a process a head: a quarter of them is enough
    CAPTURE(g.name);
    const TemporaryFolder folder;
    run_on(device, input_files(g.folder, {"q", "k", "v"}), folder.file("out/deep"));
    check_close(load_matrix<float>(folder.file("out/deep"), "o"), g.O, kFloat32);
  }
  CHECK(heads >= 24);
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") { check_prints(run({}), "33.4291"); }

TEST_CASE("cpu: executable on a real sentence meets PyTorch") { program_on_real_data("cpu"); }
TEST_CASE("device: executable on a real sentence meets PyTorch") {
  if (have_device()) program_on_real_data(device_kind());
}

TEST_CASE("cpu: executable computes f8 input in float64 and keeps its type") {
  const TemporaryFolder folder;
  const auto [Q, K, V] = random_head<double>(5, 7, 3);
  const Arguments inputs =
      put_inputs(folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}});
  const std::string out = folder.file("out");
  REQUIRE(run(inputs, {"--br", "2", "--bc", "3", "--out", out}).exit_code == 0);
  check_close(load_matrix<double>(out, "o"), reference_attention(Q, K, V).O, kFloat64);
}

TEST_CASE("device: executable takes a thread order") {
  if (!have_device()) return;
  const int expected = simulated() ? 0 : 2;  // a GPU has its own
  for (const std::string order : {"forward", "reverse", "random"}) {
    const ProgramResult r =
        run({"--n", "20", "--device", device_kind(), "--thread-order", order});
    CHECK(r.exit_code == expected);
  }
  check_refused(words("--n 20 --thread-order forward"), "needs the device sim");
  check_refused(words("--n 20 --thread-order sideways"), "--thread-order");
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto check = [&](Index Nq, Index, const Arguments& inputs, const std::string& device) {
    run_on(device, inputs, folder.file("out"));
    check_close(load_matrix<float>(folder.file("out"), "o"), Floats::Zero(Nq, 4), {0, 0});
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable that cannot write its result ends with 1") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "o.npy");  // where the file should go
  const ProgramResult r = run({"--n", "3", "--out", folder.path().string()});
  CHECK(r.exit_code == 1);
  CHECK(contains(r.err, "o.npy: cannot be opened for writing"));
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  check_refused_heads();
  const TemporaryFolder folder;
  const std::string q = put(folder, "q.npy", to_npy(Floats(Floats::Ones(2, 4)))),
                    flat = put(folder, "flat.npy", to_npy(vector({1, 2, 3}))),
                    wide = put(folder, "wide.npy", to_npy(Floats(Floats::Ones(2, 257))));
  check_refused({"--q", q, "--k", flat, "--v", q}, "flat.npy");
  check_refused({"--q", wide, "--k", wide, "--v", wide}, "257");
  check_refused(words("--n -1"), "--n");
  check_refused(words("--scale nan"), "--scale");
  check_refused(words("--scale 1e300 --n 4"), "scale");
  check_refused(words("--causal"), "--causal");  // chapter 04
  check_refused(words("--device gpu"), "--device");
  if (simulated()) check_refused(words("--device sim --d 256 --n 4 --br 64 --bc 64"), "232448");
}

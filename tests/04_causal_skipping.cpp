// Chapter 04: the causal forward pass that skips hidden tiles, on the CPU and on the device,
// against naive attention in float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include <doctest/doctest.h>

#include <functional>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/ceil_div.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

struct Options {
  Tiling tile = {};
  bool causal = true;
  std::optional<double> scale = {};
  Visit visit = Visit::skip_hidden;
};
using Forward =
    std::function<Floats(const Floats& Q, const Floats& K, const Floats& V, const Options&)>;

// Outputs start as NaN, and inputs must come back unchanged.
Floats on_cpu(const Floats& Q, const Floats& K, const Floats& V, const Options& o) {
  Floats O = Floats::Constant(Q.rows(), Q.cols(), NAN);
  const auto call = [&] {
    causal_forward_cpu<float>(Q, K, V, O, o.tile, o.causal, o.scale, o.visit);
  };
  check_unchanged(call, Q, K, V);
  return O;
}

Floats on_device(const Floats& Q, const Floats& K, const Floats& V, const Options& o) {
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(Q.rows(), Q.cols());  // a new array is NaN
  causal_forward_cuda(device_Q, device_K, device_V, O, o.tile, o.causal, o.scale, o.visit);
  check_holds(device_Q, Q, device_K, K, device_V, V);
  return to_host(O);
}

Matrix<double> exact(const Floats& Q, const Floats& K, const Floats& V, bool causal = true,
                     std::optional<double> scale = {}) {
  return reference(Q, K, V, {.scale = scale, .causal = causal}).O;
}

// Br < Bc, equal, larger; powers of two and coprime; larger than the matrices.
const std::vector<Tiling> kTilings{{1, 1}, {2, 3}, {3, 2}, {4, 4},   {4, 8},  {8, 4},
                                   {5, 7}, {7, 5}, {1, 8}, {64, 64}, {16, 1}, {3, 100}};

// ---- bodies that run on both devices

void ragged_sizes(const Forward& forward) {
  for (const Index d : {1, 20}) {
    CAPTURE(d);
    each_size({0, 1, 3, 4, 5, 9}, {0, 1, 3, 4, 5, 7, 8, 9, 17}, [&](Index Nq, Index Nk) {
      const auto [Q, K, V] = random_head(Nq, Nk, d);
      check_close(forward(Q, K, V, {.tile = {4, 8}}), exact(Q, K, V), kFloat32);
    });
  }
}

// K22 cudnn-frontend 493: with Nq = Nk alone, two alignments of the mask look the same.
void tile_shapes(const Forward& forward) {
  for (const Size size : {Size{2, 5}, {5, 2}, {23, 23}, {19, 30}, {30, 19}}) {
    const auto [Q, K, V] = random_head(size.Nq, size.Nk, 6, 1);
    const Matrix<double> causal = exact(Q, K, V), all = exact(Q, K, V, false);
    for (const Tiling& tile : kTilings) {
      CAPTURE(size);
      CAPTURE(tile);
      check_close(forward(Q, K, V, {.tile = tile}), causal, kFloat32);
      check_close(forward(Q, K, V, {.tile = tile, .causal = false}), all, kFloat32);
    }
  }
}

// Masking everything is the slow way to the same bits.
void both_visits(const Forward& forward) {
  for (const Size size : {Size{21, 21}, {10, 33}, {33, 10}, {4, 0}}) {
    const auto [Q, K, V] = random_head(size.Nq, size.Nk, 5, 2);
    for (const Tiling& tile : kTilings) {
      CAPTURE(size);
      CAPTURE(tile);
      const Floats skipping = forward(Q, K, V, {.tile = tile});
      CHECK(same_bits(forward(Q, K, V, {.tile = tile, .visit = Visit::all_tiles}), skipping));
    }
  }
}

void head_dimensions(const Forward& forward) {
  for (const Index d : {1, 31, 33, 64, 96, 256}) {
    CAPTURE(d);
    const auto [Q, K, V] = random_head(10, 37, d);
    check_close(forward(Q, K, V, {.tile = {8, 16}}), exact(Q, K, V), kFloat32);
  }
}

void scales(const Forward& forward) {
  const auto [Q, K, V] = random_head(21, 21, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 0.01, 3.0}) {
    CAPTURE(scale);
    check_close(forward(Q, K, V, {.tile = {4, 8}, .scale = scale}), exact(Q, K, V, true, scale),
                kFloat32);
  }
  CHECK_THROWS_AS(forward(Q, K, V, {.scale = NAN}), std::invalid_argument);
  CHECK_THROWS_AS(forward(Q, K, V, {.scale = 1e300}), std::invalid_argument);
}

void goldens_agree(const Forward& forward) {
  for (const std::string set : {"forward", "real"}) {
    for (const Golden& g : goldens(set)) {
      CAPTURE(g.name);
      check_close(forward(g.Q, g.K, g.V, {.tile = {16, 32}, .scale = g.scale}), g.O_causal,
                  kFloat32);
      check_close(forward(g.Q, g.K, g.V, {.tile = {16, 32}, .causal = false, .scale = g.scale}),
                  g.O, kFloat32);
    }
  }
}

// The first rows of a longer sequence are the rows of the shorter one: what comes later, huge
// or not, does not matter. And a query alone sees all keys, mask or not.
void prefixes(const Forward& forward) {
  const Index N = 20;
  auto [Q, K, V] = random_head(N, N, 8, 3);
  const Options options{.tile = {4, 6}};
  for (const Index n : {1, 5, 6, 7, 13}) {
    CAPTURE(n);
    const Floats shorter = forward(Q.topRows(n), K.topRows(n), V.topRows(n), options);
    K.bottomRows(N - n) *= 100;
    V.bottomRows(N - n) *= 100;
    check_close(forward(Q, K, V, options).topRows(n), shorter, kFloat32);
  }
  const Floats alone = forward(Q.bottomRows(1), K, V, options);
  check_close(alone, exact(Q.bottomRows(1), K, V, false), kFloat32);
}

// K01, K02, K03 and K15: what rows see and what they do not.
void reported_cases(const Forward& forward) {
  const auto check = [&](const char* report, const std::vector<float>& q,
                         const std::vector<float>& k, const std::vector<float>& v,
                         const std::vector<float>& expected, Tiling tile, double scale = 1) {
    CAPTURE(report);
    for (const Visit visit : {Visit::skip_hidden, Visit::all_tiles}) {
      check_close(forward(column(q), column(k), column(v),
                          {.tile = tile, .scale = scale, .visit = visit}),
                  column(expected), kFloat32);
    }
  };
  const auto zeros = [](std::size_t n) { return std::vector<float>(n, 0.0f); };
  // more queries than keys: the first rows see nothing
  check("K01 flashinfer 4452", {1, 1, 1}, {1}, {5}, {0, 0, 5}, {2, 2});
  // the guard value of the exponent must not become the running maximum
  check("K01 flash-attention 2082", {-200, -200, -200, -200}, {1, 1, 1, 1}, {1, 2, 3, 4},
        {1, 1.5, 2, 2.5}, {4, 2});
  // a hidden key has weight 0 even where the visible one scores far lower
  check("K01 lattice 373", {-20000, 0}, {1, 0}, {1, 100}, {1, 50.5}, {2, 2});

  for (const Tiling tile : {Tiling{1, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 4}, {4, 4}}) {
    CAPTURE(tile);
    check("K02 flash-attention 282", zeros(2), zeros(5), {0, 1, 2, 3, 4}, {1.5, 2}, tile);
    check("K02 flash-attention 1778", zeros(5), zeros(2), {1, 3}, {0, 0, 0, 1, 2}, tile);
    // the diagonal key is visible
    check("K02 flashinfer 348", zeros(2), zeros(3), {1, 2, 4}, {1.5, 2.3333333f}, tile);
    // the tile's last row, not its first, says how far to walk
    check("K02 rocMLIR 2165", zeros(4), zeros(4), {0, 1, 2, 3}, {0, 0.5, 1, 1.5}, tile);
    // more than one tile of a query tile may be partial
    check("K02 flash-attention 436", zeros(4), zeros(6), {0, 1, 2, 3, 4, 5}, {1, 1.5, 2, 2.5},
          tile);
    check("K02 jax 19237", zeros(2), zeros(2), {0, 1}, {0, 0.5}, tile);
  }
  check_close(forward(column({0, 0}), column({0, 0}), column({0, 1}), {.causal = false}),
              column({0.5, 0.5}), kFloat32);  // K02 jax 19237, the other half

  check("K03 flash-attention 978", zeros(2), {}, {}, {0, 0}, {});
  check("K03 xformers 1042", zeros(1), {}, {}, {0}, {});
  check("K03 flash-attention 2515", {}, std::vector<float>(64, 1), std::vector<float>(64, 1),
        {}, {});

  // -inf belongs after the scale: 0 * -inf is NaN, -1 * -inf is +inf
  check("K15 flash-attention 1461", {5, 5, 5}, {1, 2, 3}, {3, 6, 9}, {3, 4.5, 6}, {2, 2}, 0);
  check("K15 pytorch 105202", {1, 1}, {1, 2}, {3, 6}, {3, 3.806824f}, {2, 2}, -1);
}

// K13: NaN spreads to the rows that see it and to no other, to the bit.
void nan_and_visibility(const Forward& forward) {
  {  // pytorch 101967
    const Floats O =
        forward(column({1, 1}), column({1, NAN}), column({3, NAN}), {.scale = 1.0});
    check_close(O, doubles({3, NAN}), kFloat32, true);
  }
  {  // lattice 789, under a mask that leaves row 0 without keys
    const Floats O =
        forward(column({1, NAN, 1}), column({1, 1}), column({3, 5}), {.scale = 1.0});
    check_close(O, doubles({0, NAN, 4}), kFloat32, true);
  }
  for (const Size size : {Size{6, 6}, {4, 7}, {7, 4}}) {
    const Index Nq = size.Nq, Nk = size.Nk, offset = Nk - Nq;
    const auto [Q, K, V] = random_head(Nq, Nk, 3, 4);
    for (const Tiling tile : {Tiling{2, 2}, {3, 2}, {2, 3}, {8, 8}}) {
      for (const Visit visit : {Visit::skip_hidden, Visit::all_tiles}) {
        const Options options{.tile = tile, .visit = visit};
        const Floats clean = forward(Q, K, V, options);
        for (Index j = 0; j < Nk; ++j) {
          CAPTURE(size);
          CAPTURE(tile);
          CAPTURE(j);
          const Index seen_from = std::clamp<Index>(j - offset, 0, Nq);  // rows from here on
          Floats bad_K = K, bad_V = V;
          bad_K(j, 1) = NAN;
          bad_V(j, 1) = NAN;
          const Floats by_K = forward(Q, bad_K, V, options),
                       by_V = forward(Q, K, bad_V, options);
          CHECK(same_bits(by_K.topRows(seen_from), clean.topRows(seen_from)));
          CHECK(same_bits(by_V.topRows(seen_from), clean.topRows(seen_from)));
          CHECK(by_K.bottomRows(Nq - seen_from).array().isNaN().all());
          CHECK(by_V.col(1).tail(Nq - seen_from).array().isNaN().all());
          CHECK(same_bits(by_V.col(0), clean.col(0)));
        }
      }
    }
  }
}

// K04 jax 27224, K16 ggml 13438: the same bits at every run, with memory left over from other
// work.
void repeatable(const Forward& forward) {
  const auto [Q, K, V] = random_head(70, 90, 24, 9);
  const Floats first = forward(Q, K, V, {.tile = {16, 32}});
  for (int run = 0; run < 10; ++run) {
    forward(K, Q, Q, {.tile = {32, 16}, .scale = 0.1});
    CHECK(same_bits(forward(Q, K, V, {.tile = {16, 32}}), first));
  }
}

void bad_arguments(const Forward& forward) {
  const auto message = [&](const Floats& Q, const Floats& K, const Floats& V, Tiling tile) {
    return message_of([&] { forward(Q, K, V, {.tile = tile}); });
  };
  check_refused_shapes(message);
  const auto [Q, K, V] = random_head(3, 4, 5);
  CHECK(message(Q, K, V, {.Br = 4, .Bc = -1}) == "Bc must be at least 1, found -1");
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every ragged size agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device);
}

TEST_CASE("cpu: the result does not depend on the tile shape K22") { tile_shapes(on_cpu); }
TEST_CASE("device: the result does not depend on the tile shape K22") {
  if (have_device()) tile_shapes(on_device);
}

TEST_CASE("cpu: skipping and masking everything give the same bits") { both_visits(on_cpu); }
TEST_CASE("device: skipping and masking everything give the same bits") {
  if (have_device()) both_visits(on_device);
}

TEST_CASE("cpu: every head dimension agrees with naive attention") { head_dimensions(on_cpu); }
TEST_CASE("device: every head dimension agrees with naive attention") {
  if (have_device()) head_dimensions(on_device);
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

TEST_CASE("cpu: a row does not depend on what comes after it") { prefixes(on_cpu); }
TEST_CASE("device: a row does not depend on what comes after it") {
  if (have_device()) prefixes(on_device);
}

TEST_CASE("cpu: reported cases K01 K02 K03 K15") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K01 K02 K03 K15") {
  if (have_device()) reported_cases(on_device);
}

TEST_CASE("cpu: NaN reaches the rows that see it and no other K13") {
  nan_and_visibility(on_cpu);
}
TEST_CASE("device: NaN reaches the rows that see it and no other K13") {
  if (have_device()) nan_and_visibility(on_device);
}

TEST_CASE("cpu: the same bits at every run K04 K16") { repeatable(on_cpu); }
TEST_CASE("device: the same bits at every run K04 K16") {
  if (have_device()) repeatable(on_device);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(on_device);
}

// ---- the mask in integers

TEST_CASE("cpu: a full and a partial and a hidden tile") {
  const TileKind left = classify_tile(4, 4, 0, 4, 0), diagonal = classify_tile(4, 4, 4, 4, 0),
                 right = classify_tile(4, 4, 8, 4, 0);
  CHECK(left == TileKind::full);
  CHECK(diagonal == TileKind::partial);
  CHECK(right == TileKind::hidden);
}

TEST_CASE("cpu: tile kinds and visible counts agree with the definition pair by pair") {
  int kinds[3] = {};
  for (Index row0 = 0; row0 <= 5; ++row0) {
    for (Index rows = 1; rows <= 4; ++rows) {
      for (Index col0 = 0; col0 <= 6; ++col0) {
        for (Index cols = 1; cols <= 4; ++cols) {
          for (Index offset = -10; offset <= 10; ++offset) {
            Index pairs = 0;
            bool counts_agree = true;
            for (Index i = row0; i < row0 + rows; ++i) {
              Index seen = 0;
              for (Index j = col0; j < col0 + cols; ++j) seen += j <= i + offset;
              counts_agree = counts_agree && visible_keys(i, col0, cols, offset) == seen;
              pairs += seen;
            }
            const TileKind kind = classify_tile(row0, rows, col0, cols, offset);
            const TileKind expected = pairs == 0             ? TileKind::hidden
                                      : pairs == rows * cols ? TileKind::full
                                                             : TileKind::partial;
            ++kinds[static_cast<int>(expected)];
            if (kind == expected && counts_agree) continue;
            CAPTURE(row0);
            CAPTURE(rows);
            CAPTURE(col0);
            CAPTURE(cols);
            CAPTURE(offset);
            CHECK(kind == expected);
            CHECK(counts_agree);
          }
        }
      }
    }
  }
  for (const int count : kinds) CHECK(count > 1000);
}

TEST_CASE("cpu: the offset is signed and without a mask every pair is visible") {
  CHECK(mask_offset(5, 2, true) == -3);
  CHECK(mask_offset(2, 5, true) == 3);
  CHECK(mask_offset(7, 7, true) == 0);
  for (const Index Nq : {1, 4, 9}) {
    for (const Index Nk : {1, 4, 9}) {
      CHECK(visible_keys(0, 0, Nk, mask_offset(Nq, Nk, false)) == Nk);
      CHECK(classify_tile(0, Nq, 0, Nk, mask_offset(Nq, Nk, false)) == TileKind::full);
    }
  }
}

TEST_CASE("cpu: tile counts agree with the definition pair by pair") {
  for (Index Nq = 0; Nq <= 9; ++Nq) {
    for (Index Nk = 0; Nk <= 9; ++Nk) {
      for (const Tiling& tile : kTilings) {
        CAPTURE(Nq);
        CAPTURE(Nk);
        CAPTURE(tile);
        const Index Tr = ceil_div(Nq, tile.Br), Tc = ceil_div(Nk, tile.Bc);
        TileCounts expected;
        for (Index t = 0; t < Tr * Tc; ++t) {
          Index visible = 0, hidden = 0;
          for (Index i = t / Tc * tile.Br; i < std::min(Nq, (t / Tc + 1) * tile.Br); ++i) {
            for (Index j = t % Tc * tile.Bc; j < std::min(Nk, (t % Tc + 1) * tile.Bc); ++j) {
              ++(j <= i + Nk - Nq ? visible : hidden);
            }
          }
          ++(visible == 0 ? expected.hidden : hidden == 0 ? expected.full : expected.partial);
        }
        CHECK(count_tiles(Nq, Nk, tile, true) == expected);
        CHECK(count_tiles(Nq, Nk, tile, false) == TileCounts{0, Tr * Tc, 0});
      }
    }
  }
  CHECK(count_tiles(5, 9, {INT64_MAX, INT64_MAX}, true) == TileCounts{0, 0, 1});
  // half of the tiles of a long square are hidden
  CHECK(count_tiles(2048, 2048, {64, 64}, true) == TileCounts{496, 496, 32});
}

// ---- errata

namespace {

// The notes' section 4.1, with the offset that it leaves out: fully visible iff
// k_end <= q_start + offset.
TileKind notes_kind(Index row0, Index rows, Index col0, Index cols, Index offset) {
  if (col0 >= row0 + rows + offset) return TileKind::hidden;
  if (col0 + cols <= row0 + offset) return TileKind::full;
  return TileKind::partial;
}

// How many tiles the notes mask although they are full; -1 if their bound were not even sound.
Index masked_for_nothing(Index Nq, Index Nk, Tiling tile) {
  Index count = 0;
  for (Index q = 0; q < Nq; q += tile.Br) {
    for (Index k = 0; k < Nk; k += tile.Bc) {
      const Index rows = std::min(tile.Br, Nq - q), cols = std::min(tile.Bc, Nk - k);
      const TileKind notes = notes_kind(q, rows, k, cols, Nk - Nq);
      const TileKind tight = classify_tile(q, rows, k, cols, Nk - Nq);
      if (notes == tight) continue;
      if (notes != TileKind::partial || tight != TileKind::full) return -1;
      ++count;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("cpu: errata E8 the notes' bound is sound but not tight") {
  CHECK(masked_for_nothing(32, 32, {4, 4}) == 0);  // where it looks right
  CHECK(masked_for_nothing(24, 24, {2, 3}) == 4);  // coprime tiles
  CHECK(masked_for_nothing(25, 25, {4, 4}) == 1);  // a ragged edge
  CHECK(masked_for_nothing(32, 35, {4, 4}) == 8);  // an offset: once a query tile
  // tiles of one key or one row: every tile that ends on the diagonal
  CHECK(masked_for_nothing(9, 9, {1, 1}) == 9);
  // never unsound, and for nothing exactly once for each i, j with (j + 1) Bc = i Br + 1 (or,
  // at the ragged edge, Nk in the place of (j + 1) Bc)
  for (Index Nq = 1; Nq <= 12; ++Nq) {
    for (Index Nk = 1; Nk <= 12; ++Nk) {
      for (const Tiling& tile : kTilings) {
        Index expected = 0;
        for (Index q = 0; q < Nq; q += tile.Br) {
          for (Index k = 0; k < Nk; k += tile.Bc) {
            expected += std::min(k + tile.Bc, Nk) == q + Nk - Nq + 1;
          }
        }
        CHECK(masked_for_nothing(Nq, Nk, tile) == expected);
      }
    }
  }
}

// ---- the CPU's own

TEST_CASE("cpu: without a mask the bits are chapter 03's") {
  for (const Size size : {Size{21, 21}, {10, 33}, {33, 10}, {4, 0}}) {
    const auto [Q, K, V] = random_head(size.Nq, size.Nk, 16, 6);
    for (const Tiling& tile : kTilings) {
      Floats O(size.Nq, 16);
      tiled_forward_cpu<float>(Q, K, V, O, tile);
      CHECK(same_bits(on_cpu(Q, K, V, {.tile = tile, .causal = false}), O));
    }
  }
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Index Nk : {0, 1, 20, 33, 64, 65, 129}) {
    const auto [Q, K, V] = random_head<double>(33, Nk, 16, 1);
    Matrix<double> O = Matrix<double>::Constant(33, 16, NAN);
    causal_forward_cpu<double>(Q, K, V, O, {.Br = 8, .Bc = 64});
    check_close(O, reference_attention(Q, K, V, {.causal = true}).O, kFloat64);
  }
}

TEST_CASE("cpu: m and l of a row are those of the keys that it sees") {
  const Index Nq = 9, Nk = 12;
  const auto [Q, K, V] = random_head<double>(Nq, Nk, 4, 5);
  for (const Index offset : {Index{3}, Index{0}, Index{-4}, Index{-20}, Index{40}}) {
    CAPTURE(offset);
    const auto state = causal_q_tile<double>(Q, K, V, 0, 5, offset, 0.5);
    for (Index r = 0; r < Nq; ++r) {
      const Index n = std::clamp<Index>(r + offset + 1, 0, Nk);
      const auto row =
          reference_attention(Q.row(r), K.topRows(n), V.topRows(n), {.scale = 0.5});
      check_close(state.O.row(r), row.O, kFloat64);
      CHECK(matches(state.m[r], row.m[0], 1e-12));
      CHECK(matches(state.l[r], row.l[0], 1e-12));
    }
  }
}

TEST_CASE("cpu: a stretch of the keys is the same walk with a smaller offset") {
  const Index N = 20, from = 7, count = 9;
  const auto [Q, K, V] = random_head<double>(N, N, 4, 6);
  const auto state = causal_q_tile<double>(Q.middleRows(4, 12), K.middleRows(from, count),
                                           V.middleRows(from, count), 4, 4, 0 - from, 0.5);
  for (Index r = 0; r < 12; ++r) {
    const Index n = std::clamp<Index>(r + 4 + 1 - from, 0, count);
    const auto row = reference_attention(Q.row(4 + r), K.middleRows(from, n),
                                         V.middleRows(from, n), {.scale = 0.5});
    check_close(state.O.row(r), row.O, kFloat64);
  }
}

namespace {

// Keeps which tiles an observer is shown.
struct Recorder : TileObserver<float> {
  struct Tile {
    Index row0, col0;
    std::vector<Index> visible;
    Floats S;
    Vector<float> l;
    Floats O;
  };
  void on_tile(const FoldedTile<float>& t) override {
    tiles.push_back({t.state.row0,
                     t.state.col0,
                     {t.visible.begin(), t.visible.end()},
                     t.S,
                     t.state.l,
                     t.state.O});
  }
  std::vector<Tile> tiles;
};

}  // namespace

TEST_CASE("cpu: the worked example of the lesson tile by tile") {
  const Floats Q = Floats::Zero(4, 1), K = Floats::Ones(6, 1), V = column({0, 1, 2, 3, 4, 5});
  Recorder recorder;
  Floats O(4, 1);
  causal_forward_cpu<float>(Q, K, V, O, {2, 2}, true, 1.0, Visit::skip_hidden, &recorder);
  check_close(O, column({1, 1.5, 2, 2.5}), {0, 0});
  REQUIRE(recorder.tiles.size() == 5);  // of 6
  const auto& first = recorder.tiles[0];
  CHECK(first.visible == std::vector<Index>{2, 2});
  CHECK(first.l[0] == 2);
  CHECK(first.O(0, 0) == 1);
  const auto& second = recorder.tiles[1];
  CHECK(second.col0 == 2);
  CHECK(second.visible == std::vector<Index>{1, 2});
  CHECK(second.l[0] == 3);
  CHECK(second.O(0, 0) == 3);
  CHECK(recorder.tiles[2].row0 == 2);  // the tile of keys 4 and 5 was not visited
}

TEST_CASE("cpu: an observer sees every tile that is not hidden in order") {
  for (const Size size : {Size{10, 10}, {6, 17}, {17, 6}}) {
    const Index Nq = size.Nq, Nk = size.Nk, offset = Nk - Nq;
    for (const Tiling tile : {Tiling{4, 4}, {2, 3}, {3, 2}, {5, 8}}) {
      CAPTURE(size);
      CAPTURE(tile);
      const auto [Q, K, V] = random_head(Nq, Nk, 2);
      Recorder skipping, all;
      Floats O(Nq, 2);
      causal_forward_cpu<float>(Q, K, V, O, tile, true, {}, Visit::skip_hidden, &skipping);
      CHECK(same_bits(O, on_cpu(Q, K, V, {.tile = tile})));
      causal_forward_cpu<float>(Q, K, V, O, tile, true, {}, Visit::all_tiles, &all);

      std::size_t s = 0, a = 0;
      for (Index q = 0; q < Nq; q += tile.Br) {
        for (Index k = 0; k < Nk; k += tile.Bc) {
          const Index rows = std::min(tile.Br, Nq - q), cols = std::min(tile.Bc, Nk - k);
          REQUIRE(a < all.tiles.size());
          CHECK(all.tiles[a].row0 == q);
          CHECK(all.tiles[a].col0 == k);
          CHECK(all.tiles[a].S.cols() == cols);
          for (Index r = 0; r < rows; ++r) {
            CHECK(all.tiles[a].visible[static_cast<std::size_t>(r)] ==
                  std::clamp<Index>(q + r + offset + 1 - k, 0, cols));
          }
          if (k <= q + rows - 1 + offset) {  // not hidden
            REQUIRE(s < skipping.tiles.size());
            CHECK(skipping.tiles[s].row0 == q);
            CHECK(skipping.tiles[s].col0 == k);
            CHECK(skipping.tiles[s].visible == all.tiles[a].visible);
            ++s;
          }
          ++a;
        }
      }
      CHECK(s == skipping.tiles.size());
      CHECK(a == all.tiles.size());
    }
  }
}

TEST_CASE("cpu: tiles larger than any matrix are one tile") {
  const auto [Q, K, V] = random_head(9, 5, 4);
  check_close(on_cpu(Q, K, V, {.tile = {INT64_MAX, INT64_MAX}}), exact(Q, K, V), kFloat32);
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(100, 150, 64, 11);
  check_close(on_device(Q, K, V, {}), on_cpu(Q, K, V, {}), kFloat32);
  check_close(on_device(K, Q, Q, {}), on_cpu(K, Q, Q, {}), kFloat32);
}

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Head h = random_head(20, 27, 10, 12);
  const auto run = [&] { return on_device(h.Q, h.K, h.V, {.tile = {8, 8}}); };
  const Floats first = run();
  in_other_thread_orders([&] { CHECK(same_bits(run(), first)); });
}

TEST_CASE("device: tiles that do not fit are refused with both numbers K17") {
  if (!have_device()) return;
  const auto [Q, K, V] = random_head(2, 2, 256);
  const std::string expected = does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552);
  CHECK_THROWS_WITH_AS(on_device(Q, K, V, {.tile = {64, 64}}), expected.c_str(),
                       std::invalid_argument);
}

namespace {

// The floats that the kernel reads, if the device counts them.
std::optional<Index> read_floats(Index Nq, Index Nk, Index d, Tiling tile, bool causal,
                                 Visit visit) {
  const auto [Q, K, V] = random_head(Nq, Nk, d);
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(Nq, d);
  reset_device_traffic();
  causal_forward_cuda(device_Q, device_K, device_V, O, tile, causal, {}, visit);
  const auto traffic = device_traffic();
  if (!traffic) return std::nullopt;
  CHECK(traffic->written_bytes == 4 * Nq * d);
  return traffic->read_bytes / 4;
}

}  // namespace

// A kernel that cuts even the partial tiles short reads less, which is as good.
TEST_CASE("device: hidden tiles are not even loaded") {
  if (!have_device()) return;
  if (!counted(read_floats(1, 1, 1, {}, true, Visit::skip_hidden))) return;
  // Bc divides Nk: every tile visited has 2 Bc d floats of K and V
  for (const Size size : {Size{24, 24}, {11, 24}, {40, 24}}) {
    const Index Nq = size.Nq, Nk = size.Nk;
    for (const Tiling tile : {Tiling{4, 4}, {3, 8}, {8, 3}, {5, 6}}) {
      CAPTURE(size);
      CAPTURE(tile);
      const Index d = 5;
      const TileCounts counts = count_tiles(Nq, Nk, tile, true);
      const auto expected = [&](Index tiles) { return Nq * d + tiles * 2 * tile.Bc * d; };
      const Index skipping = *read_floats(Nq, Nk, d, tile, true, Visit::skip_hidden),
                  all = *read_floats(Nq, Nk, d, tile, true, Visit::all_tiles);
      CHECK(skipping <= expected(counts.full + counts.partial));
      CHECK(all == expected(counts.hidden + counts.full + counts.partial));
      if (counts.hidden > 0) CHECK(skipping < all);
      CHECK(*read_floats(Nq, Nk, d, tile, false, Visit::skip_hidden) == all);
    }
  }
}
TEST_CASE("device: the bytes read are those of Q and of the tiles that are not hidden") {
  if (!have_device()) return;
  if (!counted(read_floats(1, 1, 1, {}, true, Visit::skip_hidden))) return;
  const Index Nq = 40, Nk = 24, d = 5;
  for (const Tiling tile : {Tiling{4, 4}, {3, 8}, {8, 3}, {5, 6}}) {  // Bc divides Nk
    CAPTURE(tile);
    const TileCounts counts = count_tiles(Nq, Nk, tile, true);
    CHECK(*read_floats(Nq, Nk, d, tile, true, Visit::skip_hidden) ==
          Nq * d + (counts.full + counts.partial) * 2 * tile.Bc * d);
  }
  // a short last tile: 10 queries, 17 keys, Br = 4, Bc = 8. The query tiles see up to key 10,
  // 14 and 16: two, two and three tiles of 8, 8 and 1 keys
  CHECK(*read_floats(10, 17, 6, {4, 8}, true, Visit::skip_hidden) ==
        10 * 6 + (16 + 16 + 17) * 2 * 6);
}

// ---- the executable

namespace {

// Runs the executable on golden heads, and checks o.npy.
void program_on_real_data(const std::string& device) {
  int heads = 0;
  for (const Golden& g : goldens("real")) {
    if (++heads % 8 != 1) continue;  // a process a head: some of them are enough
    for (const bool causal : {true, false}) {
      CAPTURE(g.name);
      CAPTURE(causal);
      const TemporaryFolder folder;
      const std::string out = folder.file("out/deep");
      Arguments arguments = input_files(g.folder, {"q", "k", "v"});
      if (causal) arguments.push_back("--causal");
      run_on(device, arguments, out);
      check_close(load_matrix<float>(out, "o"), causal ? g.O_causal : g.O, kFloat32);
    }
  }
  CHECK(heads >= 24);
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}), {"28 hidden, 28 full, 8 partial", "##/.....", "All rows: 1 1.5 2 2.5"});
}

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
  const ProgramResult r =
      run(inputs, {"--br", "2", "--bc", "3", "--causal", "--scale", "-0.7", "--out", out});
  REQUIRE(r.exit_code == 0);
  check_close(load_matrix<double>(out, "o"),
              reference_attention(Q, K, V, {.scale = -0.7, .causal = true}).O, kFloat64);
}

TEST_CASE("cpu: executable counts tiles") {
  const TileCounts counts = count_tiles(24, 30, {4, 6}, true);
  const auto text = [](Index n) { return std::to_string(n); };
  check_prints(run(words("--n 24 --nk 30 --d 4 --br 4 --bc 6 --causal --json")),
               {"\"tiles\":{\"hidden\":" + text(counts.hidden) + ",\"full\":" +
                    text(counts.full) + ",\"partial\":" + text(counts.partial) + "}",
                "\"causal\":true"});
  check_prints(run(words("--n 24 --nk 30 --br 4 --bc 6")),
               "tiles: 0 hidden, 30 full, 0 partial");
}

TEST_CASE("cpu: executable takes empty inputs") {
  const TemporaryFolder folder;
  const auto check = [&](Index Nq, Index, const Arguments& inputs, const std::string& device) {
    run_on(device, joined(inputs, {"--causal"}), folder.file("out"));
    check_close(load_matrix<float>(folder.file("out"), "o"), Floats::Zero(Nq, 4), {0, 0});
  };
  each_empty_head(folder, check);
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  check_refused_heads({"--causal"});
  check_refused(words("--causal=2"), "--causal");
  check_refused(words("--scale nan"), "--scale");
  if (simulated()) check_refused(words("--device sim --d 256 --n 4 --br 64 --bc 64"), "232448");
}

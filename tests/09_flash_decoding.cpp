// Chapter 09: decoding with split keys, on the CPU and on the device, against naive attention
// in float64.
//
// Cases named Kxx come from public reports about other kernels; each says where from. K12
// flash-attention 1455 needs a length for each sequence; it is with chapter 10's tests.
#include <doctest/doctest.h>

#include <functional>
#include <numeric>

#include "chapters/09_flash_decoding/decoding_traffic.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/09_flash_decoding/merge_splits.hpp"
#include "chapters/09_flash_decoding/split_walk.hpp"
#include "chapters/09_flash_decoding/wrong_versions.hpp"
#include "common/cli/batch.hpp"
#include "common/device/eigen.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"
#include "tests/support/results.hpp"
#include "tests/support/strided_heads.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

struct Inputs {
  Heads Q, K, V;
};
struct Decoded {
  Heads O;
  Floats LSE;
};
using Decode = std::function<Decoded(const Inputs&, const DecodingOptions&)>;

constexpr double kMinusInf = -kInf<double>;
constexpr Merge kMerges[] = {Merge::sequential, Merge::tree, Merge::last_block};

// Outputs start as NaN, and inputs must come back unchanged.
Decoded on_cpu(const Inputs& in, const DecodingOptions& options) {
  Decoded out{nan_like(in.Q), Floats::Constant(in.Q.B() * in.Q.H(), in.Q.N(), NAN)};
  const auto call = [&] {
    flash_decoding_cpu<float>(in.Q.view(), in.K.view(), in.V.view(), out.O.view(), out.LSE,
                              options);
  };
  check_unchanged(call, in.Q, in.K, in.V);
  return out;
}

Decoded on_device(const Inputs& in, const DecodingOptions& options) {
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d());  // new arrays are NaN
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  flash_decoding_cuda(Q, K, V, O, LSE, options);
  check_holds(Q, in.Q, K, in.K, V, in.V);
  return {to_host(O), to_host(LSE)};
}

Inputs random_inputs(Index B, Index H, Index Hkv, Index Nq, Index Nk, Index d,
                     std::uint64_t seed = 0) {
  return {random_heads<float>(B, H, Nq, d, seed, 0),
          random_heads<float>(B, Hkv, Nk, d, seed, 1),
          random_heads<float>(B, Hkv, Nk, d, seed, 2)};
}

ReferenceHeadsResult exact(const Inputs& in, const DecodingOptions& options) {
  return reference(in.Q, in.K, in.V, {.scale = options.scale, .causal = options.causal});
}

// ---- bodies that run on both devices

void ragged_sizes(const Decode& decode) {
  for (const Index Hkv : {1, 3}) {
    for (const Index group : {1, 2}) {
      CAPTURE(Hkv);
      CAPTURE(group);
      each_size({0, 1, 2, 5}, {0, 1, 3, 4, 5, 9}, [&](Index Nq, Index Nk) {
        const Inputs in = random_inputs(2, Hkv * group, Hkv, Nq, Nk, 5);
        for (const bool causal : {false, true}) {
          const DecodingOptions options{.splits = 1 + Nk % 3, .tile = {4, 4}, .causal = causal};
          check_outputs(decode(in, options), exact(in, options));
        }
      });
    }
  }
}

// No heads, no batch; each head dimension that is awkward for vectors and warps.
void odd_shapes(const Decode& decode) {
  for (const auto& [B, H, Hkv] : {std::array<Index, 3>{0, 2, 1}, {2, 0, 0}, {1, 0, 2}}) {
    const Decoded none =
        decode({Heads(B, H, 3, 4), Heads(B, Hkv, 8, 4), Heads(B, Hkv, 8, 4)}, {.splits = 2});
    CHECK(none.O.elements().empty());
    CHECK(none.LSE.size() == 0);
  }
  for (const Index d : {1, 31, 33, 100, 129, 256}) {
    CAPTURE(d);
    const Inputs in = random_inputs(1, 2, 1, 1, 37, d, 3);
    for (const Merge merge : kMerges) {
      const DecodingOptions options{.splits = 3, .merge = merge, .tile = {8, 8}};
      check_outputs(decode(in, options), exact(in, options));
    }
  }
}

// The heart of the matter: any number of splits, merged in any way.
void any_splits(const Decode& decode) {
  for (const bool causal : {false, true}) {
    const Inputs in = random_inputs(2, 4, 2, 3, 33, 12, 1);
    const auto expected = exact(in, {.causal = causal});
    for (const Index splits : {1, 2, 3, 4, 7, 8, 9, 10, 16, 40, 300}) {
      for (const Merge merge : kMerges) {
        CAPTURE(causal);
        CAPTURE(splits);
        CAPTURE(static_cast<int>(merge));
        check_outputs(
            decode(in, {.splits = splits, .merge = merge, .tile = {64, 4}, .causal = causal}),
            expected);
      }
    }
    check_outputs(decode(in, {.causal = causal}), expected);  // auto
  }
}

// The query rows that share a KV head in one tile, in several, and with a short last one.
void tile_shapes(const Decode& decode) {
  for (const Index Nq : {1, 4}) {
    const Inputs in = random_inputs(1, 10, 2, Nq, 29, 6, 2);
    const auto expected = exact(in, {.causal = true});
    for (const Tiling tile : {Tiling{1, 1}, {2, 3}, {3, 8}, {5, 29}, {7, 5}, {64, 64}}) {
      CAPTURE(Nq);
      CAPTURE(tile);
      for (const Merge merge : {Merge::sequential, Merge::last_block}) {
        check_outputs(decode(in, {.splits = 4, .merge = merge, .tile = tile, .causal = true}),
                      expected);
      }
    }
    check_outputs(decode(in, {.splits = 2, .tile = {INT64_MAX, INT64_MAX}, .causal = true}),
                  expected);
  }
}

void scales(const Decode& decode) {
  const Inputs in = random_inputs(1, 2, 1, 2, 21, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 3.0}) {
    CAPTURE(scale);
    const DecodingOptions options{.splits = 3, .tile = {4, 4}, .causal = true, .scale = scale};
    check_outputs(decode(in, options), exact(in, options));
  }
  CHECK_THROWS_AS(decode(in, {.scale = std::nan("")}), std::invalid_argument);
  CHECK_THROWS_AS(decode(in, {.scale = 1e300}), std::invalid_argument);
}

void goldens_agree(const Decode& decode) {
  for (const std::string set : {"gqa", "decoder"}) {
    for (const HeadsGolden& g : heads_goldens(set)) {
      CAPTURE(g.name);
      const DecodingOptions options{.splits = 3,
                                    .merge = Merge::tree,
                                    .tile = {64, 8},
                                    .causal = g.causal,
                                    .scale = g.scale};
      check_outputs(decode({g.Q, g.K, g.V}, options), g);
    }
  }
}

// A new token and its cache are the last row of the whole; so are the last few tokens.
void last_rows_of_a_prefill(const Decode& decode) {
  const Inputs all = random_inputs(2, 4, 2, 24, 24, 8, 4);
  const auto expected = exact(all, {.causal = true});
  for (const Index Nq : {1, 3, 8}) {
    CAPTURE(Nq);
    Inputs in{Heads(2, 4, Nq, 8), all.K, all.V};
    for (Index i = 0; i < 8; ++i) {
      in.Q.head(i / 4, i % 4) = all.Q.head(i / 4, i % 4).bottomRows(Nq);
    }
    const Decoded out = decode(in, {.splits = 5, .tile = {8, 4}, .causal = true});
    for (Index i = 0; i < 8; ++i) {
      check_close(out.O.head(i / 4, i % 4), expected.O.head(i / 4, i % 4).bottomRows(Nq),
                  kFloat32);
    }
    check_close(out.LSE, expected.LSE.rightCols(Nq), kFloat32);
  }
}

// Keys in another order, with their values, go to other splits; a constant V comes back.
void properties(const Decode& decode) {
  Inputs in = random_inputs(1, 3, 1, 2, 40, 6, 5);
  const DecodingOptions options{.splits = 6, .tile = {8, 4}};
  const Decoded first = decode(in, options);
  for (Heads* heads : {&in.K, &in.V}) {
    heads->head(0, 0) = Floats(heads->head(0, 0).colwise().reverse());
  }
  check_outputs(decode(in, options), first);
  in.V.head(0, 0).setConstant(2.5f);
  check_close(decode(in, options).O, Matrix<double>::Constant(6, 6, 2.5), kFloat32);
}

// What reports say about other kernels: the smallest input of each. Q = 1 row, or a few.
void reported_cases(const Decode& decode) {
  const auto check = [&](const char* report, const std::vector<float>& q,
                         const std::vector<float>& k, const std::vector<float>& v,
                         const std::vector<double>& O, const std::vector<double>& LSE,
                         bool causal = false, double scale = 1) {
    CAPTURE(report);
    const Inputs in{one_head(q), one_head(k), one_head(v)};
    for (const Index splits : {1, 2, 3, 4, 6, 8}) {
      for (const Merge merge : kMerges) {
        for (const Index Bc : {1, 2, 4}) {
          CAPTURE(splits);
          CAPTURE(Bc);
          const Decoded out = decode(in, {.splits = splits,
                                          .merge = merge,
                                          .tile = {2, Bc},
                                          .causal = causal,
                                          .scale = scale});
          check_close(out.O, doubles(O), kFloat32);
          check_close(out.LSE, doubles(LSE).transpose(), kFloat32);
        }
      }
    }
  };
  const auto ln = [](double x) { return std::log(x); };
  const auto zeros = [](std::size_t n) { return std::vector<float>(n, 0.0f); };
  const float inf = kInf<float>;
  check("the lesson's row", {1}, {1, 3, 2, 4}, {10, 20, 30, 40}, {33.429077}, {4.44019});
  check("K12 vllm 47188", {0}, zeros(5), {1, 2, 3, 4, 5}, {3}, {ln(5)});
  check("K01 flashinfer 4452", {1, 1, 1}, {1}, {5}, {0, 0, 5}, {-inf, -inf, 1}, true);
  check("K01 flash-attention 2082", {-200, -200, -200, -200}, {1, 1, 1, 1}, {1, 2, 3, 4},
        {1, 1.5, 2, 2.5}, {-200, -199.306853, -198.901388, -198.613706}, true);
  check("K01 lattice 373", {-20000, 0}, {1, 0}, {1, 100}, {1, 50.5}, {-20000, ln(2)}, true);
  check("K02 flash-attention 282", zeros(2), zeros(5), {0, 1, 2, 3, 4}, {1.5, 2},
        {ln(4), ln(5)}, true);
  check("K02 flash-attention 1778", zeros(5), zeros(2), {1, 3}, {0, 0, 0, 1, 2},
        {-inf, -inf, -inf, 0, ln(2)}, true);
  check("K03 flash-attention 978", {1, NAN}, {}, {}, {0, 0}, {-inf, -inf});
  check("K04 flash-attention-minimal 2", {3}, {5}, {7}, {7}, {15});
  check("K04 flashinfer 3716", {0}, zeros(3), {1, 2, 3}, {2}, {ln(3)});
  check("K08 pytorch 181645", {1}, {0, 1}, {0, 1}, {0.731059}, {1.313262});
  check("K15 pytorch 105202", {1, 1}, {1, 2}, {3, 6}, {3, 3.806824}, {-1, -0.686738}, true, -1);
  check("K15 flash-attention 1461", {5, 5, 5}, {1, 2, 3}, {3, 6, 9}, {3, 4.5, 6},
        {0, ln(2), ln(3)}, true, 0);
  check("K20 tilelang 1148", {1}, {200, 0}, {1, 2}, {1}, {200});
  check("all scores are -inf", {1}, {-inf, -inf, -inf}, {1, 2, 3}, {0}, {-inf});
  check("all but one", {1}, {-inf, -inf, 5, -inf}, {1, 2, 3, 4}, {3}, {5});

  {  // K12 vllm flash-attention 176: the second batch has a place of its own
    Inputs in{Heads(2, 1, 2, 1), Heads(2, 1, 4, 1), Heads(2, 1, 4, 1, 1.0f)};
    in.V.head(1, 0).setConstant(2);
    for (const Merge merge : kMerges) {
      const Decoded out = decode(in, {.splits = 2, .merge = merge, .tile = {2, 2}});
      CHECK((out.O.head(0, 0).array() == 1).all());
      CHECK((out.O.head(1, 0).array() == 2).all());
    }
  }
  {  // K12 llama.cpp 13852: more splits than channels; K17 llama.cpp 16744: than threads
    Inputs in{Heads(1, 1, 1, 8), Heads(1, 1, 64, 8), Heads(1, 1, 64, 8)};
    for (Index j = 0; j < 64; ++j) in.V.head(0, 0).row(j).setConstant(static_cast<float>(j));
    for (const Merge merge : kMerges) {
      for (const Index splits : {64, 1100}) {
        const Decoded out = decode(in, {.splits = splits, .merge = merge, .tile = {1, 1}});
        check_close(out.O, Matrix<double>::Constant(1, 8, 31.5), kFloat32);
        check_close(out.LSE, doubles({ln(64)}), kFloat32);
      }
    }
  }
}

// K13: NaN reaches the rows that see it, through every merge, and leaves all others alone, to
// the bit.
void nan_and_visibility(const Decode& decode) {
  const Inputs clean = random_inputs(2, 4, 2, 2, 11, 3, 6);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 3, .merge = merge, .tile = {4, 2}, .causal = true};
    const Decoded expected = decode(clean, options);
    for (const Index j : {0, 3, 4, 10}) {  // the last one is seen by query 1 alone
      CAPTURE(j);
      Inputs by_K = clean, by_V = clean;
      by_K.K.head(1, 0)(j, 1) = NAN;
      by_V.V.head(1, 0)(j, 1) = NAN;
      const Decoded K_out = decode(by_K, options), V_out = decode(by_V, options);
      for (Index i = 0; i < 8; ++i) {
        for (Index n = 0; n < 2; ++n) {
          const bool sees = i / 4 == 1 && i % 4 < 2 && j <= n + 9;
          const auto is = expected.O.head(i / 4, i % 4).row(n),
                     K_is = K_out.O.head(i / 4, i % 4).row(n),
                     V_is = V_out.O.head(i / 4, i % 4).row(n);
          CHECK(V_out.LSE(i, n) == expected.LSE(i, n));
          CHECK(V_is(0) == is(0));
          if (sees) {
            CHECK(std::isnan(K_out.LSE(i, n)));
            CHECK(K_is.array().isNaN().all());
            CHECK(std::isnan(V_is(1)));
          } else {
            CHECK(K_out.LSE(i, n) == expected.LSE(i, n));
            CHECK(same_bits(K_is, is));
            CHECK(V_is(1) == is(1));
          }
        }
      }
    }
    {  // lattice 789: NaN in one query row; and a score that overflows
      const Decoded out =
          decode({one_head({1, NAN, 3e38f}), one_head({1, 2, 3, 4}), one_head({3, 5, 3, 5})},
                 {.splits = 2, .merge = merge, .tile = {4, 2}, .scale = 1.0});
      CHECK(std::isfinite(out.O.head(0, 0)(0, 0)));
      for (const Index n : {1, 2}) {
        CHECK(std::isnan(out.O.head(0, 0)(n, 0)));
        CHECK(std::isnan(out.LSE(0, n)));
      }
    }
  }
}

// K04 jax 27224, K16 xformers 1392: the same bits at every run, whoever comes first.
void repeatable(const Decode& decode) {
  const Inputs in = random_inputs(2, 6, 2, 2, 90, 24, 9),
               large = random_inputs(1, 16, 2, 1, 129, 256);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 7, .merge = merge, .tile = {4, 4}, .causal = true};
    const Decoded first = decode(in, options),
                  first_large = decode(large, {.splits = 3, .merge = merge, .tile = {8, 32}});
    for (int run = 0; run < 5; ++run) {
      CHECK(same_outputs(decode(in, options), first));
      CHECK(same_outputs(decode(large, {.splits = 3, .merge = merge, .tile = {8, 32}}),
                         first_large));
    }
  }
  // the last block merges in the order of the second kernel
  CHECK(same_outputs(decode(in, {.splits = 7, .merge = Merge::last_block, .tile = {4, 4}}),
                     decode(in, {.splits = 7, .merge = Merge::sequential, .tile = {4, 4}})));
}

void bad_arguments(const Decode& decode) {
  const Inputs in = random_inputs(2, 4, 2, 1, 3, 5);
  const auto message = [&](const Inputs& inputs, const DecodingOptions& options) {
    return message_of([&] { decode(inputs, options); });
  };
  CHECK(message({in.Q, Heads(2, 2, 3, 6), in.V}, {}) ==
        "K must be [2, 2, 3, 5], found [2, 2, 3, 6]");
  CHECK(message({in.Q, Heads(1, 2, 3, 5), in.V}, {}) ==
        "K must be [2, 2, 3, 5], found [1, 2, 3, 5]");
  CHECK(message({in.Q, in.K, Heads(2, 1, 3, 5)}, {}) ==
        "V must be [2, 2, 3, 5], found [2, 1, 3, 5]");
  CHECK(message({in.Q, Heads(2, 3, 3, 5), Heads(2, 3, 3, 5)}, {}) ==
        "the number of KV heads must divide the number of heads, found 3 for 4");
  CHECK(message({in.Q, Heads(2, 0, 3, 5), Heads(2, 0, 3, 5)}, {}) ==
        "the number of KV heads must divide the number of heads, found 0 for 4");
  CHECK(message({Heads(1, 1, 1, 0), Heads(1, 1, 2, 0), Heads(1, 1, 2, 0)}, {}) ==
        "the head dimension d must be from 1 to 256, found 0");  // K03 pytorch 174939
  CHECK(message({Heads(1, 1, 1, 257), Heads(1, 1, 2, 257), Heads(1, 1, 2, 257)}, {}) ==
        "the head dimension d must be from 1 to 256, found 257");
  CHECK(message(in, {.splits = 0}) == "the number of splits must be from 1 to 8192, found 0");
  CHECK(message(in, {.splits = 8193}) ==
        "the number of splits must be from 1 to 8192, found 8193");
  CHECK(message(in, {.tile = {0, 4}}) == "Br must be at least 1, found 0");
  CHECK(message(in, {.tile = {4, -1}}) == "Bc must be at least 1, found -1");
}

// Batches as a projection leaves them, [B, N, H, d], and with gaps. K07 flag_gems 5235: the
// merge steps over the rows of O as they lie; H = 1 would hide it.
constexpr Index kB = 2, kH = 4, kHkv = 2, kNq = 2, kNk = 9, kd = 4;
struct Layouts {
  HeadsLayout Q, K, V, O;
};
const Layouts kLayouts[] = {{bnhd_layout(kB, kH, kNq, kd), bnhd_layout(kB, kHkv, kNk, kd),
                             bhnd_layout(kB, kHkv, kNk, kd), bnhd_layout(kB, kH, kNq, kd)},
                            // rows of 4 with gaps of 3; V shared by all heads and batches
                            {{kB, kH, kNq, kd, 56, 14, 7},
                             {kB, kHkv, kNk, kd, 126, 63, 7},
                             {kB, kHkv, kNk, kd, 0, 0, 7},
                             {kB, kH, kNq, kd, 56, 14, 7}}};

// run(Q, K, V, O, LSE, merge): memory in these layouts.
template <class Run>
void strided(const Run& run) {
  for (const Layouts& at : kLayouts) {
    Inputs in = random_inputs(kB, kH, kHkv, kNq, kNk, kd, 8);
    if (at.V.stride_b == 0) {
      for (Index i = 0; i < 4; ++i) in.V.head(i / 2, i % 2) = Floats(in.V.head(1, 1));
    }
    const auto expected = exact(in, {.causal = true});
    const std::vector<float> Q = laid_out(in.Q, at.Q), K = laid_out(in.K, at.K),
                             V = laid_out(in.V, at.V);
    for (const Merge merge : kMerges) {
      std::vector<float> O(static_cast<std::size_t>(layout_extent(at.O)), NAN);
      Floats LSE = Floats::Constant(kB * kH, kNq, NAN);
      run({Q.data(), at.Q}, {K.data(), at.K}, {V.data(), at.V}, {O.data(), at.O}, LSE, merge);
      const Decoded out{taken_out(O, at.O), LSE};
      check_outputs(out, expected);
      CHECK(gaps_untouched(O, out.O));
    }
  }
}

}  // namespace

TEST_CASE("cpu: every size from 0 on agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every size from 0 on agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device);
}

TEST_CASE("cpu: no heads and odd head dimensions") { odd_shapes(on_cpu); }
TEST_CASE("device: no heads and odd head dimensions") {
  if (have_device()) odd_shapes(on_device);
}

TEST_CASE("cpu: any number of splits merged in any way gives the same K12") {
  any_splits(on_cpu);
}
TEST_CASE("device: any number of splits merged in any way gives the same K12") {
  if (have_device()) any_splits(on_device);
}

TEST_CASE("cpu: the result does not depend on the tile shape") { tile_shapes(on_cpu); }
TEST_CASE("device: the result does not depend on the tile shape") {
  if (have_device()) tile_shapes(on_device);
}

TEST_CASE("cpu: any finite scale is right and others are refused") { scales(on_cpu); }
TEST_CASE("device: any finite scale is right and others are refused") {
  if (have_device()) scales(on_device);
}

TEST_CASE("cpu: PyTorch's float64 results are met for GQA and a decoder's layers") {
  goldens_agree(on_cpu);
}
TEST_CASE("device: PyTorch's float64 results are met for GQA and a decoder's layers") {
  if (have_device()) goldens_agree(on_device);
}

TEST_CASE("cpu: new tokens are the last rows of the whole sequence") {
  last_rows_of_a_prefill(on_cpu);
}
TEST_CASE("device: new tokens are the last rows of the whole sequence") {
  if (have_device()) last_rows_of_a_prefill(on_device);
}

TEST_CASE("cpu: keys may change places and a constant value comes back") { properties(on_cpu); }
TEST_CASE("device: keys may change places and a constant value comes back") {
  if (have_device()) properties(on_device);
}

TEST_CASE("cpu: reported cases K01 K02 K03 K04 K08 K12 K15 K17 K20") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K01 K02 K03 K04 K08 K12 K15 K17 K20") {
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

TEST_CASE("cpu: heads lie anywhere K07") {
  strided([](HeadsView<const float> Q, HeadsView<const float> K, HeadsView<const float> V,
             HeadsView<float> O, Floats& LSE, Merge merge) {
    flash_decoding_cpu<float>(Q, K, V, O, LSE,
                              {.splits = 2, .merge = merge, .tile = {4, 2}, .causal = true});
  });
}
TEST_CASE("device: heads lie anywhere K07") {
  if (!have_device()) return;
  strided([](HeadsView<const float> Q, HeadsView<const float> K, HeadsView<const float> V,
             HeadsView<float> O, Floats& LSE, Merge merge) {
    DeviceHeads<float> device_O(O.layout());
    DeviceMatrix<float> device_LSE(LSE.rows(), LSE.cols());
    flash_decoding_cuda(to_device(Q), to_device(K), to_device(V), device_O, device_LSE,
                        {.splits = 2, .merge = merge, .tile = {4, 2}, .causal = true});
    device_O.download(O.data());
    LSE = to_host(device_LSE);
  });
}

// ---- the merge alone

namespace {

// o (splits * rows, d) and LSE (splits, rows) -> O [1, 1, rows, d], LSE (1, rows).
using Merging = std::function<Decoded(const Floats& o, const Floats& lse, Merge merge)>;

Decoded merged_on_cpu(const Floats& o, const Floats& lse, Merge merge) {
  const Index splits = lse.rows(), rows = lse.cols();
  SplitParts<float> parts(splits, rows, o.cols());
  parts.O = o;
  parts.LSE = lse;
  Decoded out{Heads(1, 1, rows, o.cols(), NAN), Floats::Constant(1, rows, NAN)};
  merge_splits_cpu<float>(parts, out.O.view(), out.LSE, merge);
  return out;
}

Decoded merged_on_device(const Floats& o, const Floats& lse, Merge merge) {
  const Index splits = lse.rows(), rows = lse.cols();
  DeviceSplitParts parts(splits, rows, o.cols());
  parts.O.upload(o.data());
  parts.LSE.upload(lse.data());
  DeviceHeads<float> O(1, 1, rows, o.cols());
  DeviceMatrix<float> LSE(1, rows);
  merge_splits_cuda(parts, O, LSE, merge);
  return {to_host(O), to_host(LSE)};
}

// One row of one channel.
void check_merge(const Merging& merging, const std::vector<float>& o,
                 const std::vector<float>& lse, double O, double LSE) {
  for (const Merge merge : {Merge::sequential, Merge::tree}) {
    const Decoded out = merging(column(o), column(lse), merge);
    check_close(out.O, doubles({O}), kFloat32, true);
    check_close(out.LSE, doubles({LSE}), kFloat32, true);
  }
}

void merges(const Merging& merging) {
  const float inf = kInf<float>, ln3 = std::log(3.0f);
  const double nan = std::nan("");
  // the contract's example: scores 1, 3, 2, 4 in halves
  check_merge(merging, {18.807971f, 38.807971f}, {3.126928f, 4.126928f}, 33.429077, 4.44019);
  check_merge(merging, {0, 1}, {ln3, 0}, 0.25, std::log(4.0));  // K08 flashinfer 2113
  check_merge(merging, {0, 3}, {-inf, 0.5f}, 3, 0.5);           // K03 flash-attention 978
  // K03 flashinfer 4484, K12 vllm 47188: empty parts are neutral, whatever their o holds and
  // wherever they stand
  for (const float filler : {0.0f, 1e6f, NAN, inf}) {
    check_merge(merging, {filler, filler, filler}, {-inf, -inf, -inf}, 0, kMinusInf);
    check_merge(merging, {1, 2, filler}, {0, 0, -inf}, 1.5, std::log(2.0));
    check_merge(merging, {filler, 1, filler, 2, filler}, {-inf, 0, -inf, 0, -inf}, 1.5,
                std::log(2.0));
  }
  // LSEs far beyond what exp can hold, apart and together
  check_merge(merging, {1, 2, 4}, {-1000, -1000, -2000}, 1.5, -1000 + std::log(2.0));
  check_merge(merging, {1, 2, 4}, {1000, 3000, 3000}, 3, 3000 + std::log(2.0));
  // NaN is not empty: in an LSE, in an o, and beside anything else
  for (const float other : {0.0f, -inf, 50.0f}) {
    check_merge(merging, {NAN, 2}, {NAN, other}, nan, nan);
    check_merge(merging, {1, NAN}, {other, NAN}, nan, nan);
    check_merge(merging, {1, NAN, 3}, {other, NAN, other}, nan, nan);
  }
  check_merge(merging, {NAN, 2}, {0, 0}, nan, std::log(2.0));
  check_merge(merging, {1, NAN}, {200, 0}, nan, 200);  // weight 0, and still NaN

  // one part among empty ones comes out bit by bit
  for (const Index at : {0, 1, 4, 6}) {
    Floats o = Floats::Constant(7 * 2, 5, NAN), lse = Floats::Constant(7, 2, -inf);
    o.middleRows(2 * at, 2) = random_matrix<float>(2, 5, 7, 0);
    lse.row(at) = random_matrix<float>(1, 2, 7, 1);
    for (const Merge merge : {Merge::sequential, Merge::tree}) {
      const Decoded out = merging(o, lse, merge);
      CHECK(same_bits(as_rows(out.O), o.middleRows(2 * at, 2)));
      CHECK(same_bits(out.LSE, lse.row(at)));
    }
  }
}

// Any number of parts, in any order and grouping: the formula in float64.
void merge_order(const Merging& merging) {
  for (const Index splits : {1, 2, 3, 5, 8, 13, 64, 200}) {
    CAPTURE(splits);
    const Index rows = 3, d = 4;
    Floats o = random_matrix<float>(splits * rows, d, 1, 0),
           lse = random_matrix<float>(splits, rows, 1, 1, 3.0);
    if (splits > 2) lse(splits / 2, 1) = -kInf<float>;
    Matrix<double> O = Matrix<double>::Zero(rows, d), LSE(1, rows);
    for (Index r = 0; r < rows; ++r) {
      const Vector<double> weights = lse.col(r).cast<double>().array().exp();
      for (Index s = 0; s < splits; ++s) {
        O.row(r) += weights[s] / weights.sum() * o.row(s * rows + r).cast<double>();
      }
      LSE(0, r) = std::log(weights.sum());
    }
    for (const Merge merge : kMerges) {
      const Decoded out = merging(o, lse, merge);
      check_close(out.O, O, kFloat32);
      check_close(out.LSE, LSE, kFloat32);
      // backwards
      Floats o_back(o.rows(), d), lse_back = lse.colwise().reverse();
      for (Index s = 0; s < splits; ++s) {
        o_back.middleRows(s * rows, rows) = o.middleRows((splits - 1 - s) * rows, rows);
      }
      check_close(merging(o_back, lse_back, merge).O, O, kFloat32);
    }
  }
}

}  // namespace

TEST_CASE("cpu: empty parts are neutral and NaN is not empty K03 K08 K12") {
  merges(merged_on_cpu);
}
TEST_CASE("device: empty parts are neutral and NaN is not empty K03 K08 K12") {
  if (have_device()) merges(merged_on_device);
}

TEST_CASE("cpu: parts merge in any order and grouping") { merge_order(merged_on_cpu); }
TEST_CASE("device: parts merge in any order and grouping") {
  if (have_device()) merge_order(merged_on_device);
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  for (const Merge merge : kMerges) {
    const auto Q = random_heads<double>(2, 4, 3, 16, 1, 0),
               K = random_heads<double>(2, 2, 70, 16, 1, 1),
               V = random_heads<double>(2, 2, 70, 16, 1, 2);
    HeadsArray<double> O(2, 4, 3, 16, NAN);
    Matrix<double> LSE = Matrix<double>::Constant(8, 3, NAN);
    flash_decoding_cpu<double>(Q.view(), K.view(), V.view(), O.view(), LSE,
                               {.splits = 6, .merge = merge, .tile = {4, 8}, .causal = true});
    const auto expected =
        reference_attention_heads(Q.view(), K.view(), V.view(), {.causal = true});
    check_close(O, expected.O, kFloat64);
    check_close(LSE, expected.LSE, kFloat64);
  }
}

TEST_CASE("cpu: a walk takes its keys from wherever the loader finds them") {
  const Index Nq = 2, Nk = 13, d = 4;
  const auto Q = random_matrix<double>(3, d, 2, 0), K = random_matrix<double>(Nk, d, 2, 1),
             V = random_matrix<double>(Nk, d, 2, 2);
  const Matrix<double> backwards_K = K.colwise().reverse(), backwards_V = V.colwise().reverse();
  std::vector<KeyRange> loaded;
  const auto load = [&](Index k_start, Index cols, Matrix<double>& Kj, Matrix<double>& Vj) {
    loaded.push_back({k_start, k_start + cols});
    Kj = backwards_K.middleRows(Nk - k_start - cols, cols).colwise().reverse();
    Vj = backwards_V.middleRows(Nk - k_start - cols, cols).colwise().reverse();
  };
  // rows 1, 2, 3 of those that share a KV head: queries 1, 0, 1
  const BlockRows at{.b = 0, .kv = 0, .first_row = 1, .rows = 3, .row = 1};
  const auto state =
      walk_split<double>(Q, at, Nq, {4, 11}, 3, mask_offset(Nq, Nk - 3, true), 0.5, load);
  REQUIRE(loaded.size() == 3);
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(loaded[t].begin == 4 + 3 * static_cast<Index>(t));
    CHECK(loaded[t].end == std::min<Index>(11, loaded[t].begin + 3));
  }
  for (Index r = 0; r < 3; ++r) {
    const Index sees = r == 1 ? 5 : 6;  // of the keys from 4 on: up to 8, and up to 9
    const auto expected = reference_attention(Q.row(r), K.middleRows(4, sees),
                                              V.middleRows(4, sees), {.scale = 0.5});
    check_close(state.O.row(r), expected.O, kFloat64);
    CHECK(matches(state.m[r] + std::log(state.l[r]), expected.LSE[0], 1e-12));
  }
}

// ---- the integers

TEST_CASE("cpu: splits cut the keys in order into whole tiles") {
  for (Index Nk = 0; Nk <= 40; ++Nk) {
    for (const Index Bc : {1, 3, 4, 16, 64}) {
      for (const Index splits : {1, 2, 3, 4, 6, 8, 13, 41, 100}) {
        CAPTURE(Nk);
        CAPTURE(Bc);
        CAPTURE(splits);
        Index next = 0, used = 0;
        bool right = true;
        for (Index s = 0; s < splits; ++s) {
          const KeyRange keys = split_keys(Nk, Bc, splits, s);
          // each begins where the last one ended, at a tile's edge unless it is empty
          right = right && keys.begin == next && keys.end >= keys.begin &&
                  (keys.empty() || keys.begin % Bc == 0) &&
                  keys.empty() == (keys.begin == keys.end);
          // no split has more tiles than an even share, rounded up
          right = right &&
                  ceil_div(keys.end - keys.begin, Bc) <= ceil_div(ceil_div(Nk, Bc), splits);
          used += !keys.empty();
          next = keys.end;
        }
        CHECK(right);
        CHECK(next == Nk);
        CHECK(used_splits(Nk, Bc, splits) == used);
      }
    }
  }
  // K12 vllm 47188: 5 keys in 4 splits are 2, 2, 1 and none
  CHECK(split_keys(5, 1, 4, 2).end == 5);
  CHECK(split_keys(5, 1, 4, 3).empty());
}

TEST_CASE("cpu: every row of every head belongs to exactly one block") {
  for (const DecodingSizes sizes : {DecodingSizes{2, 6, 3, 4, 9, 1},
                                    {1, 5, 1, 1, 9, 1},
                                    {3, 2, 2, 7, 9, 1},
                                    {0, 2, 1, 1, 9, 1},
                                    {1, 2, 1, 0, 9, 1}}) {
    for (const Index Br : {1, 2, 3, 8, 64}) {
      std::vector<int> seen(static_cast<std::size_t>(sizes.rows()));
      bool right = true;
      for (Index which = 0; which < count_block_rows(sizes, Br); ++which) {
        const BlockRows at = block_rows(sizes, Br, which);
        right = right && at.rows >= 1 && at.rows <= Br;
        for (Index r = 0; r < at.rows; ++r) {
          const GroupRow row = group_row(at.first_row + r, sizes.Nq);
          const Index h = at.kv * sizes.group() + row.head;
          right = right && h / sizes.group() == at.kv &&
                  at.row + r == (at.b * sizes.H + h) * sizes.Nq + row.query;
          ++seen[static_cast<std::size_t>(at.row + r)];
        }
      }
      CHECK(right);
      CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("cpu: auto splits where it helps K12 K03") {
  const auto choose = [](Index B, Index H, Index Hkv, Index Nq, Index Nk, Index slots = 264) {
    const DecodingSizes sizes{B, H, Hkv, Nq, Nk, 128};
    return choose_splits(sizes, decoding_tile(sizes, {64, 64}), slots);
  };
  // K12 flash-attention 2901: more than 1 for a long cache, exactly 1 for a short one
  CHECK(choose(1, 32, 8, 1, 65536) > 1);
  CHECK(choose(1, 32, 8, 1, 1) == 1);
  CHECK(choose(1, 32, 8, 1, 131072) == 32);  // 8 * 32 = 256: nearly every slot has a block
  // K03 flash-attention 2515: nothing to do is no division by zero
  CHECK(choose(2, 32, 8, 0, 4096) == 1);
  CHECK(choose(0, 32, 8, 64, 4096) == 1);
  CHECK(choose(1, 0, 0, 1, 4096) == 1);
  CHECK(choose(1, 0, 8, 1, 4096) == 1);
  CHECK(choose(1, 32, 8, 1, 0) == 1);
  // enough blocks already: nothing to gain
  CHECK(choose(33, 32, 8, 1, 131072) == 1);
  CHECK(choose(1, 32, 8, 1, 131072, 1) == 1);
  // limits that it keeps
  CHECK(choose(1, 1, 1, 1, Index{1} << 40, 1 << 20) <= kMaxSplits);
  for (const Index B : {1, 3, 20}) {
    for (const Index Nq : {1, 8}) {
      for (const Index Nk : {100, 255, 256, 512, 1000, 5000, 40000}) {
        CAPTURE(B);
        CAPTURE(Nq);
        CAPTURE(Nk);
        const Index splits = choose(B, 32, 8, Nq, Nk), Tc = ceil_div(Nk, 64);
        CHECK(splits >= 1);
        CHECK(used_splits(Nk, 64, splits) == splits);  // no empty ones
        if (splits > 1) CHECK(Nk / splits >= std::max<Index>(16 * 4 * Nq, 256));
        const auto steps = [&](Index n) { return ceil_div(B * 8 * n, 264) * ceil_div(Tc, n); };
        CHECK(steps(splits) <= steps(1));
        for (Index n = 1; n <= Nk / std::max<Index>(16 * 4 * Nq, 256); ++n) {
          CHECK(20 * steps(splits) <= 21 * steps(n));  // as good as any allowed one
          if (n < splits) CHECK(steps(n) > steps(splits));
        }
      }
    }
  }
  // what is asked for is what is made
  const DecodingSizes sizes{1, 4, 2, 1, 5000, 8};
  CHECK(decoding_splits(sizes, {.splits = 77}, 264) == 77);
  CHECK(decoding_splits(sizes, {.tile = {1, 16}}, 264) == choose_splits(sizes, {1, 16}, 264));
}

// ---- errata

TEST_CASE("cpu: errata E39 atomics are no merge") {
  // right: m = 1, l = 1/e + 1, o = 1/e + 2
  const double e = std::exp(1.0), right = (1 / e + 2) / (1 / e + 1);
  CHECK(matches(wrong::merge_atomically({{0, 1, 1}, {1, 1, 2}}), 1.5, 1e-12));
  CHECK(matches(right, 1.731, 1e-3));
  check_merge(merged_on_cpu, {1, 2}, {0, 1}, right, std::log(1 + e));
  // it is right only if all maxima are the same
  CHECK(matches(wrong::merge_atomically({{1, 1, 1}, {1, 1, 2}}), 1.5, 1e-12));
  check_merge(merged_on_cpu, {1, 2}, {1, 1}, 1.5, 1 + std::log(2.0));
}

TEST_CASE("cpu: errata E40 one split per tile moves an eighth more") {
  // 16-bit K and V, d = 128, tiles of 16 keys, one query head a KV head. The notes' part is m,
  // l and o; the chapter's is LSE and o.
  const double tile_bytes = 2 * 16 * 128 * 2.0;
  CHECK(matches(2 * 4 * (128 + 2) / tile_bytes, 0.127, 5e-4));
  const DecodingSizes sizes{1, 32, 32, 1, 4096, 128};
  const auto extra = [&](Index splits) {
    const auto t = predict_decoding(sizes, {1, 16}, splits, Merge::sequential);
    return 4.0 * static_cast<double>(t.parts_written + t.parts_read) /
           (2.0 * static_cast<double>(t.keys_values));
  };
  CHECK(matches(extra(256), 2 * 4 * (128 + 1) / tile_bytes, 1e-12));  // 256 tiles, 256 splits
  CHECK(matches(extra(8), extra(256) / 32, 1e-12));                   // 32 tiles to a split
}

TEST_CASE("cpu: other merges that are wrong K08") {
  const double ln3 = std::log(3.0);
  // flashinfer 2113: the right answer is 0.25
  CHECK(matches(wrong::merge_base_2({{0, ln3}, {1, 0}}), 0.170094, 1e-6));
  CHECK(wrong::merge_by_average({{0, ln3}, {1, 0}}) == 0.5);
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const Inputs in = random_inputs(1, 8, 2, 2, 300, 64, 11);
  const DecodingOptions options{.splits = 4, .tile = {16, 32}, .causal = true};
  check_outputs(on_device(in, options), on_cpu(in, options));
}

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Inputs in = random_inputs(1, 4, 2, 2, 27, 10, 12);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 5, .merge = merge, .tile = {4, 4}};
    const Decoded first = on_device(in, options);
    in_other_thread_orders([&] { CHECK(same_outputs(on_device(in, options), first)); });
  }
}

TEST_CASE("device: scratch memory may hold anything and serves again K12") {
  if (!have_device()) return;
  Inputs in{Heads(1, 1, 1, 1), Heads(1, 1, 5, 1), one_head({1, 2, 3, 4, 5})};  // vllm 47188
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  for (const Index splits : {4, 6, 8}) {
    for (const Merge merge : kMerges) {
      DeviceSplitParts parts(splits, 1, 1);
      for (int call = 0; call < 3; ++call) {
        CAPTURE(splits);
        CAPTURE(call);
        const float o = call == 0 ? NAN : 1e6f, lse = call == 0 ? NAN : 50.0f;
        parts.O.upload(Floats(Floats::Constant(splits, 1, o)).data());
        parts.LSE.upload(Floats(Floats::Constant(splits, 1, lse)).data());
        DeviceHeads<float> O(1, 1, 1, 1);
        DeviceMatrix<float> LSE(1, 1);
        flash_decoding_cuda(Q, K, V, O, LSE, {.splits = splits, .merge = merge, .tile = {1, 1}},
                            &parts);
        check_close(to_host(O), doubles({3}), kFloat32);
        check_close(to_host(LSE), doubles({std::log(5.0)}), kFloat32);
      }
    }
  }
  // of other sizes it is refused
  DeviceHeads<float> O(1, 1, 1, 1);
  DeviceMatrix<float> LSE(1, 1);
  DeviceSplitParts few(2, 1, 1), wide(3, 1, 2);
  const auto message = [&](DeviceSplitParts& parts) {
    return message_of([&] { flash_decoding_cuda(Q, K, V, O, LSE, {.splits = 3}, &parts); });
  };
  CHECK(message(few) == "the parts' LSE must be [3, 1], found [2, 1]");
  CHECK(message(wide) == "the parts' O must be [3, 1], found [3, 2]");
  CHECK(message_of([&] { merge_splits_cuda(wide, O, LSE, Merge::tree); }) ==
        "the parts' O must be [3, 1], found [3, 2]");
}

TEST_CASE("device: tiles that do not fit are refused with both numbers K17") {
  if (!have_device()) return;
  CHECK(message_of([&] {
          on_device(random_inputs(1, 1, 1, 64, 64, 256), {.tile = {64, 64}});
        }) == does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552));
}

TEST_CASE("device: every byte is accounted for") {
  if (!have_device()) return;
  struct Case {
    DecodingSizes sizes;
    Tiling tile;
    Index splits;
  };
  const Case cases[] = {{{1, 8, 2, 1, 64, 16}, {64, 8}, 4},
                        {{2, 4, 4, 1, 40, 8}, {64, 8}, 1},
                        {{1, 6, 2, 3, 50, 8}, {4, 8}, 5},
                        {{1, 4, 1, 1, 30, 8}, {64, 4}, 11},
                        {{1, 2, 1, 1, 0, 8}, {64, 4}, 3}};
  for (const Case& c : cases) {
    const DecodingSizes sizes = c.sizes;
    const Tiling tile = c.tile;
    const Index splits = c.splits;
    const Inputs in = random_inputs(sizes.B, sizes.H, sizes.Hkv, sizes.Nq, sizes.Nk, sizes.d);
    for (const Merge merge : kMerges) {
      reset_device_traffic();
      const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
      DeviceHeads<float> O(sizes.B, sizes.H, sizes.Nq, sizes.d);
      DeviceMatrix<float> LSE(sizes.B * sizes.H, sizes.Nq);
      flash_decoding_cuda(Q, K, V, O, LSE, {.splits = splits, .merge = merge, .tile = tile});
      const auto traffic = device_traffic();
      if (!counted(traffic)) return;
      CAPTURE(splits);
      CAPTURE(static_cast<int>(merge));
      const auto predicted = predict_decoding(sizes, decoding_tile(sizes, tile), splits, merge);
      CHECK(traffic->read_bytes == 4 * predicted.reads());
      CHECK(traffic->written_bytes == 4 * predicted.writes());
      CHECK((traffic->atomic_bytes > 0) == (merge == Merge::last_block));
    }
  }
  // the rows that share a KV head read it once: 8 heads cost what 1 costs
  const auto alone = predict_decoding({1, 1, 1, 1, 64, 16}, {64, 8}, 4, Merge::sequential),
             shared = predict_decoding({1, 8, 1, 1, 64, 16}, {64, 8}, 4, Merge::sequential);
  CHECK(shared.keys_values == alone.keys_values);
}

// ---- the executable

namespace {

// Runs the executable on the goldens with KV heads, and checks both files.
void program_on_goldens(const std::string& device) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  for (const HeadsGolden& g : heads_goldens("gqa")) {
    CAPTURE(g.name);
    run_on(device, joined(golden_inputs(g, {"q", "k", "v"}), words("--splits 3 --bc 8")), out);
    check_outputs(Decoded{load_heads<float>(out, "o"), load_rows<float>(out, "lse")}, g);
    const auto shape = load_npy(out, "lse").shape;
    CHECK(shape == std::vector<std::int64_t>{g.O.B(), g.O.H(), g.O.N()});
  }
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}), {"Merged: O = 33.4291, LSE = 4.4402, as without splitting.",
                         "give 1.5000", "right is 1.7311"});
}

TEST_CASE("cpu: executable meets PyTorch") { program_on_goldens("cpu"); }
TEST_CASE("device: executable meets PyTorch") {
  if (have_device()) program_on_goldens(device_kind());
}

TEST_CASE("cpu: executable keeps f8 and the rank of q") {
  const TemporaryFolder folder;
  const auto [Q, K, V] = random_head<double>(2, 9, 3);
  const auto out = folder.path() / "out";
  const ProgramResult r =
      run(words("--splits 20 --bc 2 --merge tree --causal --scale -0.7 --json --out " +
                out.string()),
          put_inputs(folder, {{"q", to_npy(Q)}, {"k", to_npy(K)}, {"v", to_npy(V)}}));
  check_prints(r, {"\"splits\":20", "\"used_splits\":5", "\"merge\":\"tree\"",
                   "\"bytes\":{\"keys_values\":432", "\"read_bytes\":null"});
  const auto expected = reference_attention(Q, K, V, {.scale = -0.7, .causal = true});
  check_close(load_matrix<double>(out, "o"), expected.O, kFloat64);
  check_close(load_vector<double>(out, "lse"), expected.LSE, kFloat64);
}

TEST_CASE("cpu: executable takes empty inputs and random ones") {
  const TemporaryFolder folder;
  const auto out = folder.path() / "out";
  for (const std::string& device : usable_devices()) {
    for (const std::string merge : {"sequential", "tree", "last_block"}) {
      run_on(device,
             words("--n 2 --nk 0 --heads 4 --kv-heads 2 --d 3 --splits 3 --merge " + merge),
             out);
      check_close(load_heads<float>(out, "o"), Matrix<double>::Zero(8, 3), {0, 0});
      check_close(load_rows<float>(out, "lse"), Matrix<double>::Constant(4, 2, kMinusInf),
                  {0, 0});
    }
    CHECK(run({"--n", "0", "--device", device, "--splits", "auto"}).exit_code == 0);
    CHECK(contains(run({"--nk", "1", "--device", device, "--json"}).out, "\"splits\":1,"));
  }
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const Heads& heads) {
    return put(folder, name, cli::heads_to_npy(heads, 4));
  };
  const std::string q = file("q.npy", Heads(2, 4, 1, 3)), k = file("k.npy", Heads(2, 2, 5, 3)),
                    three = file("three.npy", Heads(2, 3, 5, 3)),
                    one = file("one.npy", Heads(1, 2, 5, 3));
  check_refused({"--q", q, "--causal"}, "--k");
  check_refused({"--q", q, "--k", one, "--v", one}, "one.npy: dimension 0 (B) is 1");
  check_refused({"--q", q, "--k", three, "--v", three}, "must divide");
  check_refused({"--q", q, "--k", three, "--v", three}, "three.npy: the number of K/V heads");
  check_refused({"--q", q, "--k", k, "--v", three}, "three.npy: dimension 1 (Hkv) is 3");
  check_refused({"--heads", "3", "--kv-heads", "2"}, "must divide");
  check_refused({"--splits", "0"},
                "--splits expects auto or an integer from 1 to 8192, found '0'");
  check_refused({"--splits", "8193"}, "found '8193'");
  check_refused({"--splits", "many"}, "found 'many'");
  check_refused({"--merge", "atomic"}, "sequential, tree or last_block");
  check_refused({"--bc", "0"}, "--bc");
  check_refused({"--d", "257"}, "--d");
  check_refused({"--scale", "nan"}, "--scale");
  check_refused({"--device", other_device()}, other_device());
  if (simulated()) {
    check_refused(words("--device sim --d 256 --n 64 --br 64 --bc 64"), "232448");
  }
}

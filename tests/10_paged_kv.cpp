// Chapter 10: attention to a cache in blocks, on the CPU and on the device, against naive
// attention in float64 and, to the bit, against chapter 09 on the same tokens laid out
// contiguously.
//
// Cases named Kxx come from public reports about other kernels; each says where from.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <map>

#include "chapters/10_paged_kv/append_token.hpp"
#include "chapters/10_paged_kv/append_token_cuda.hpp"
#include "chapters/10_paged_kv/attend.hpp"
#include "chapters/10_paged_kv/paged_shapes.hpp"
#include "chapters/10_paged_kv/paged_traffic.hpp"
#include "chapters/10_paged_kv/scatter_tokens.hpp"
#include "chapters/10_paged_kv/wrong_versions.hpp"
#include "common/cli/batch.hpp"
#include "common/device/eigen.hpp"
#include "tests/10_paged_kv_cuda.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/head.hpp"
#include "tests/support/results.hpp"
#include "tests/support/strided_heads.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

using Lengths = std::vector<std::int64_t>;

using Inputs = PagedInputs<float>;
using Out = Attended<float>;
using Attend = std::function<Out(const Inputs&, const DecodingOptions&)>;

// The same tokens contiguously: sequence b has the first lengths[b] rows of K and V.
struct Sequences {
  Heads Q, K, V;
  Lengths lengths;
};
using Contiguous =
    std::function<Out(const Heads& Q, const Heads& K, const Heads& V, const DecodingOptions&)>;

constexpr Merge kMerges[] = {Merge::sequential, Merge::tree, Merge::last_block};
constexpr float kInfinity = kInf<float>;

// Outputs start as NaN, and inputs must come back unchanged.
Out on_cpu(const Inputs& in, const DecodingOptions& options) {
  const Lengths ids = in.table.ids;
  Out out;
  check_unchanged([&] { out = attend_on_cpu(in, options); }, in.Q, in.pool);
  CHECK(in.table.ids == ids);
  return out;
}

Out on_device(const Inputs& in, const DecodingOptions& options) {
  const DeviceBlockTable table(in.table, in.pool.B() / 2, in.pool.N());
  const auto Q = to_device(in.Q), pool = to_device(in.pool);
  DeviceHeads<float> O(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d());  // new arrays are NaN
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  paged_attention_cuda(Q, pool, table, O, LSE, options);
  check_holds(Q, in.Q, pool, in.pool);
  return {to_host(O), to_host(LSE)};
}

Sequences random_sequences(const Lengths& lengths, Index H, Index Hkv, Index Nq, Index d,
                           std::uint64_t seed = 0) {
  const auto B = static_cast<Index>(lengths.size());
  const Index longest = BlockTable{B, 0, {}, lengths}.longest();
  return {random_heads<float>(B, H, Nq, d, seed, 0),
          random_heads<float>(B, Hkv, longest, d, seed, 1),
          random_heads<float>(B, Hkv, longest, d, seed, 2), lengths};
}

// Into blocks in shuffled order, NaN in slots without a token, and nonsense in entries that are
// not in use.
Inputs paged(const Sequences& in, Index block_size, std::uint64_t seed = 0) {
  auto [pool, table] =
      scatter_tokens<float>(in.K.view(), in.V.view(), in.lengths, block_size, 2, seed, NAN);
  std::replace(table.ids.begin(), table.ids.end(), std::int64_t{-1}, INT64_MIN + 7);
  return {in.Q, std::move(pool), std::move(table)};
}

// each(b, Q, K, V): every sequence alone.
template <class Each>
void each_sequence(const Sequences& in, const Each& each) {
  for (Index b = 0; b < in.Q.B(); ++b) {
    const Index Nk = in.lengths[static_cast<std::size_t>(b)];
    each(b, first_tokens(in.Q, b, in.Q.N()), first_tokens(in.K, b, Nk),
         first_tokens(in.V, b, Nk));
  }
}

// Sequence b of a result.
Out of_sequence(const Out& out, Index b) {
  return {first_tokens(out.O, b, out.O.N()), out.LSE.middleRows(b * out.O.H(), out.O.H())};
}

void check_attended(const Out& actual, const Sequences& in, const DecodingOptions& options) {
  each_sequence(in, [&](Index b, const Heads& Q, const Heads& K, const Heads& V) {
    check_outputs(of_sequence(actual, b),
                  reference(Q, K, V, {.scale = options.scale, .causal = options.causal}));
  });
}

// A pool of one head and one channel, slot by slot, and a query for each sequence, scale 1.
Out small(const Attend& attend, const std::vector<float>& q, const std::vector<float>& K,
          const std::vector<float>& V, Index block_size, const BlockTable& table,
          DecodingOptions options = {}) {
  const auto blocks = static_cast<Index>(K.size()) / block_size;
  Inputs in{Heads(table.B, 1, static_cast<Index>(q.size()) / table.B, 1),
            Heads(2 * blocks, 1, block_size, 1), table};
  in.Q.elements() = q;
  std::copy(K.begin(), K.end(), in.pool.elements().begin());
  std::copy(V.begin(), V.end(), in.pool.elements().begin() + blocks * block_size);
  options.scale = 1.0;
  return attend(in, options);
}
std::vector<float> zeros(std::size_t n) { return std::vector<float>(n, 0.0f); }

// ---- bodies that run on both devices

// Every length in one batch, blocks larger and smaller than the tile and than a sequence.
void ragged_sizes(const Attend& attend) {
  for (const Index block_size : {1, 2, 3, 4, 5, 16}) {
    for (const Index group : {1, 2}) {
      for (const Index Nq : {0, 1, 2, 5}) {
        CAPTURE(block_size);
        CAPTURE(group);
        CAPTURE(Nq);
        const Sequences in = random_sequences({4, 0, 9, 1, 3, 5}, 2 * group, 2, Nq, 5);
        for (const bool causal : {false, true}) {
          const DecodingOptions options{
              .splits = 1 + block_size % 3, .tile = {4, 4}, .causal = causal};
          check_attended(attend(paged(in, block_size), options), in, options);
        }
      }
    }
  }
}

// No batch, no heads, no blocks; each head dimension that is awkward for vectors and warps.
void odd_shapes(const Attend& attend) {
  const Out none = attend({Heads(0, 2, 3, 4), Heads(6, 1, 8, 4), {0, 5, {}, {}}}, {});
  CHECK(none.O.elements().empty());
  CHECK(attend({Heads(1, 0, 3, 4), Heads(2, 0, 8, 4), {1, 1, {0}, {5}}}, {}).LSE.size() == 0);
  for (const Index max_blocks : {0, 2}) {  // nothing in use, of a pool without blocks
    const Lengths ids(static_cast<std::size_t>(2 * max_blocks), 9);
    const Out empty =
        attend({Heads(2, 2, 3, 4, NAN), Heads(0, 1, 8, 4), {2, max_blocks, ids, {0, 0}}}, {});
    check_close(empty.O, Matrix<double>::Zero(12, 4), {0, 0});
    check_close(empty.LSE, Matrix<double>::Constant(4, 3, -kInf<double>), {0, 0});
  }
  for (const Index d : {1, 4, 31, 33, 100, 129, 256}) {
    CAPTURE(d);
    const Sequences in = random_sequences({37, 12}, 2, 1, 1, d, 3);
    for (const Merge merge : kMerges) {
      const DecodingOptions options{.splits = 3, .merge = merge, .tile = {8, 8}};
      check_attended(attend(paged(in, 5), options), in, options);
    }
  }
}

// The heart of the matter: the same tokens in blocks of any size, in any order, give the bits
// of chapter 09.
void as_chapter_09(const Attend& attend, const Contiguous& contiguous) {
  for (const bool causal : {false, true}) {
    const Sequences in = random_sequences({33, 7, 20}, 4, 2, 3, 12, 1);
    for (const Index splits : {1, 2, 5, 40}) {
      for (const Tiling tile : {Tiling{64, 4}, {5, 8}, {1, 64}}) {
        for (const Merge merge : kMerges) {
          const DecodingOptions options{
              .splits = splits, .merge = merge, .tile = tile, .causal = causal};
          const Out first = attend(paged(in, 4), options);
          each_sequence(in, [&](Index b, const Heads& Q, const Heads& K, const Heads& V) {
            CAPTURE(splits);
            CAPTURE(tile);
            CHECK(same_outputs(of_sequence(first, b), contiguous(Q, K, V, options)));
          });
          if (merge != Merge::sequential) continue;
          for (const Index block_size : {1, 3, 7, 8, 16, 33, 100}) {
            CAPTURE(block_size);
            const auto seed = static_cast<std::uint64_t>(block_size);
            CHECK(same_outputs(attend(paged(in, block_size, seed), options), first));
          }
        }
      }
    }
  }
}

// A prompt at once, or in pieces: the queries are the last of its tokens so far. And more
// queries than tokens.
void prefill(const Attend& attend) {
  const Sequences all = random_sequences({24, 24}, 4, 2, 24, 8, 4);
  const DecodingOptions options{.splits = 2, .tile = {8, 4}, .causal = true};
  check_attended(attend(paged(all, 5), options), all, options);
  check_attended(attend(paged(all, 5), {.tile = {7, 64}, .causal = true}), all, options);
  const auto expected = reference(all.Q, all.K, all.V, {.causal = true});
  for (Index begin = 0; begin < 24; begin += 9) {
    const Index Nq = std::min<Index>(9, 24 - begin);
    Sequences piece{Heads(2, 4, Nq, 8), all.K, all.V, {begin + Nq, begin + Nq}};
    for (Index i = 0; i < 8; ++i) {
      piece.Q.head(i / 4, i % 4) = all.Q.head(i / 4, i % 4).middleRows(begin, Nq);
    }
    const Out out = attend(paged(piece, 5), options);
    for (Index i = 0; i < 8; ++i) {
      check_close(out.O.head(i / 4, i % 4), expected.O.head(i / 4, i % 4).middleRows(begin, Nq),
                  kFloat32);
    }
    check_close(out.LSE, expected.LSE.middleCols(begin, Nq), kFloat32);
  }
  const Sequences short_ones = random_sequences({3, 0, 11, 40}, 2, 1, 11, 8, 5);
  check_attended(attend(paged(short_ones, 2), options), short_ones, options);
}

void scales(const Attend& attend) {
  const Sequences in = random_sequences({21, 4}, 2, 1, 2, 12);
  for (const double scale : {0.0, 1.0, -1.0, -0.3, 3.0}) {
    CAPTURE(scale);
    const DecodingOptions options{.splits = 3, .tile = {4, 4}, .causal = true, .scale = scale};
    check_attended(attend(paged(in, 3), options), in, options);
  }
  CHECK_THROWS_AS(attend(paged(in, 3), {.scale = std::nan("")}), std::invalid_argument);
  CHECK_THROWS_AS(attend(paged(in, 3), {.scale = 1e300}), std::invalid_argument);
}

void goldens_agree(const Attend& attend) {
  for (const std::string set : {"gqa", "decoder"}) {
    for (const HeadsGolden& g : heads_goldens(set)) {
      CAPTURE(g.name);
      const Sequences in{g.Q, g.K, g.V, Lengths(static_cast<std::size_t>(g.Q.B()), g.K.N())};
      const DecodingOptions options{.splits = 3,
                                    .merge = Merge::tree,
                                    .tile = {64, 8},
                                    .causal = g.causal,
                                    .scale = g.scale};
      check_outputs(attend(paged(in, 6), options), g);
    }
  }
}

// K13: whatever lies in slots, blocks and entries that no sequence uses, no bit of the result
// depends on it.
void unused_memory(const Attend& attend) {
  const Sequences in = random_sequences({13, 0, 6}, 2, 2, 2, 4, 6);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 2, .merge = merge, .tile = {4, 8}, .causal = true};
    Inputs first = paged(in, 4);
    const Out expected = attend(first, options);
    check_attended(expected, in, options);
    for (const float filler : {0.0f, kInfinity, -kInfinity, 3e38f}) {
      Inputs other = first;
      for (float& x : other.pool.elements()) {
        if (std::isnan(x)) x = filler;
      }
      for (const std::int64_t entry : {std::int64_t{0}, INT64_MAX, std::int64_t{1} << 32}) {
        std::replace_if(
            other.table.ids.begin(), other.table.ids.end(),
            [&](std::int64_t id) { return id < 0 || id >= other.pool.B(); }, entry);
        CHECK(same_outputs(attend(other, options), expected));
      }
    }
  }
}

// NaN in a token reaches the rows that see it: of all sequences that share its block, of its KV
// head, and no others, to the bit.
void nan_and_visibility(const Attend& attend) {
  Inputs clean = paged(random_sequences({6, 6, 6}, 4, 2, 2, 3, 7), 4);
  clean.table.ids[2] = clean.table.ids[0];  // sequences 0 and 1 share their first block
  const DecodingOptions options{.splits = 3, .tile = {4, 2}, .causal = true};
  const Out expected = attend(clean, options);
  const Index blocks = clean.pool.B() / 2;
  for (const Index token : {0, 3, 5}) {  // the last one is seen by query 1 alone
    CAPTURE(token);
    const Index id = clean.table.id(0, token / 4);
    Inputs by_K = clean, by_V = clean;
    by_K.pool.head(id, 0)(token % 4, 1) = NAN;
    by_V.pool.head(blocks + id, 0)(token % 4, 1) = NAN;
    const Out K_out = attend(by_K, options), V_out = attend(by_V, options);
    for (Index i = 0; i < 3 * 4; ++i) {
      for (Index n = 0; n < 2; ++n) {
        const bool has = i / 4 == 0 || (i / 4 == 1 && token < 4);
        const bool sees = has && i % 4 < 2 && token <= n + 4;
        const auto is = expected.O.head(i / 4, i % 4).row(n),
                   K_is = K_out.O.head(i / 4, i % 4).row(n),
                   V_is = V_out.O.head(i / 4, i % 4).row(n);
        CHECK(V_out.LSE(i, n) == expected.LSE(i, n));
        CHECK(V_is(0) == is(0));
        CHECK(std::isnan(K_out.LSE(i, n)) == sees);
        CHECK(std::isnan(V_is(1)) == sees);
        if (sees) {
          CHECK(K_is.array().isNaN().all());
        } else {
          CHECK(K_out.LSE(i, n) == expected.LSE(i, n));
          CHECK(same_bits(K_is, is));
          CHECK(V_is(1) == is(1));
        }
      }
    }
  }
}

// Blocks that several sequences read, or one sequence twice: as if each had its own.
void shared_blocks(const Attend& attend, const Contiguous& contiguous) {
  const Index block_size = 3, Hkv = 2, d = 4;
  Inputs in{
      random_heads<float>(4, 4, 2, d, 8, 0),
      random_heads<float>(2 * 5, Hkv, block_size, d, 8, 1),
      {4, 4, {4, 2, 0, 9, /**/ 4, 2, 1, -1, /**/ 2, 2, 2, 2, /**/ 3, 4, 0, 0}, {8, 7, 12, 5}}};
  const DecodingOptions options{.splits = 2, .tile = {4, 4}, .causal = true};
  const Out out = attend(in, options);
  for (Index b = 0; b < 4; ++b) {
    const Index Nk = in.table.seq_len(b);
    Heads K(1, Hkv, Nk, d), V(1, Hkv, Nk, d);
    for (Index j = 0; j < Nk; ++j) {
      for (Index kv = 0; kv < Hkv; ++kv) {
        const Index id = in.table.id(b, j / block_size), slot = j % block_size;
        K.head(0, kv).row(j) = in.pool.head(id, kv).row(slot);
        V.head(0, kv).row(j) = in.pool.head(5 + id, kv).row(slot);
      }
    }
    CHECK(
        same_outputs(of_sequence(out, b), contiguous(first_tokens(in.Q, b, 2), K, V, options)));
  }
}

// What reports say about other kernels: the smallest input of each.
void reported_cases(const Attend& attend) {
  const auto ln = [](double x) { return std::log(x); };
  const auto O_is = [](const Out& out, Index b, double O, double LSE) {
    CHECK(matches(out.O.head(b, 0)(0, 0), O, 1e-5 * std::max(1.0, O)));
    CHECK(matches(out.LSE(b, 0), LSE, 1e-5));
  };
  // the lesson's row
  O_is(small(attend, {1}, {2, 4, 0, 0, 1, 3, 0, 0}, {30, 40, 0, 0, 10, 20, 0, 0}, 2,
             {1, 3, {2, 0, -1}, {4}}),
       0, 33.429077, 4.44019);
  {  // K12 flash-attention 1455: each sequence is split by its own length
    const float nan = NAN;
    const Out out =
        small(attend, {1, 1}, {7, nan, 1, 1, 1, 1, 1, nan}, {5, nan, 1, 2, 3, 4, 5, nan}, 2,
              {2, 3, {1, 2, 3, 0, 0, 0}, {5, 1}}, {.splits = 2, .tile = {1, 1}});
    O_is(out, 0, 3, 1 + ln(5));
    O_is(out, 1, 5, 7);
  }
  for (const float filler : {NAN, kInfinity}) {  // K13 flash-attention 1745: K=0, V=1, 3
    O_is(
        small(attend, {0}, {0, 0, filler, filler}, {1, 3, filler, filler}, 4, {1, 1, {0}, {2}}),
        0, 2, ln(2));
  }
  {  // K13 transformers 46765: an empty sequence points at a block of NaN
    const Out out =
        small(attend, {0, 0}, {NAN, NAN, 0, 0}, {NAN, NAN, 1, 3}, 2, {2, 1, {1, 0}, {2, 0}});
    O_is(out, 0, 2, ln(2));
    O_is(out, 1, 0, -kInf<double>);
  }
  // K14 vllm flash-attention 42: a tile of 8 keys, and a table that ends after two entries. The
  // longer sequence makes the tile that large
  for (const Index Bc : {8, 64}) {
    const Out out =
        small(attend, {0, 0}, zeros(16), {1, 2, 3, 9, 5, 6, 7, 8, 1, 1, 1, 1, 1, 1, 1, 1}, 2,
              {2, 5, {0, 1, 2, 3, 4, 0, 1, 5, 5, 5}, {9, 3}}, {.tile = {1, Bc}});
    O_is(out, 1, 2, ln(3));
  }
  O_is(small(attend, {0}, zeros(4), {1, 2, 3, 9}, 2, {1, 2, {0, 1}, {3}}, {.tile = {1, 8}}), 0,
       2, ln(3));
  {  // K14 flashinfer 725: sequences shorter than a block, the same data in blocks 5 and 0
    std::vector<float> K(12, NAN), V(12, NAN);
    K[0] = K[10] = 0.3f;
    V[0] = V[10] = 1.7f;
    const Out out =
        small(attend, {0.9f, 0.9f}, K, V, 2, {2, 1, {5, 0}, {1, 1}}, {.tile = {1, 8}});
    CHECK(same_outputs(of_sequence(out, 0), of_sequence(out, 1)));
    CHECK(out.O.head(0, 0)(0, 0) == 1.7f);
  }
  {  // K14 pypto 470: the second block is not behind the first; shuffled, descending, repeated
    const float ln2 = std::log(2.0f), ln3 = std::log(3.0f), ln4 = std::log(4.0f);
    const std::vector<float> K{ln3, ln4, 9, 9, 0, ln2, 9, 9};
    const std::vector<float> V{3, 4, 100, 100, 1, 2, 100, 100};
    O_is(small(attend, {1}, K, V, 2, {1, 2, {2, 0}, {4}}), 0, 3, ln(10));
    O_is(small(attend, {1}, K, V, 2, {1, 4, {2, 0, 2, 0}, {8}}), 0, 3, ln(20));
    O_is(small(attend, {1}, K, V, 2, {1, 3, {0, 0, 2}, {6}}), 0, 55.0 / 17, ln(17));
  }
  // K02 flash-attention 282: bottom right, the new tokens included
  const Out two = small(attend, {0, 0}, zeros(6), {2, 3, 4, -1, 0, 1}, 2,
                        {1, 3, {2, 0, 1}, {5}}, {.causal = true});
  check_close(two.O, doubles({1.5, 2}), kFloat32);
  check_close(two.LSE, doubles({ln(4), ln(5)}).transpose(), kFloat32);
}

// K04 jax 27224: the same bits at every run.
void repeatable(const Attend& attend) {
  const Inputs in = paged(random_sequences({90, 31, 64}, 6, 2, 2, 24, 9), 7);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 7, .merge = merge, .tile = {4, 4}, .causal = true};
    const Out first = attend(in, options);
    for (int run = 0; run < 4; ++run) CHECK(same_outputs(attend(in, options), first));
  }
}

// K14: what a table says is checked on the host, before anything runs; the sentence names it.
void bad_tables(const Attend& attend) {
  const auto message = [&](const BlockTable& table, Index blocks = 4) {
    return message_of([&] {
      attend({Heads(table.B, 1, 1, 3), Heads(2 * blocks, 1, 2, 3), table}, {});
    });
  };
  CHECK(message({2, 2, {0, 1, 2, 3}, {4, 3}}) == "accepted");
  CHECK(message({2, 2, {0, -1, 2, 4}, {2, 1}}) == "accepted");  // not in use
  CHECK(message({2, 2, {0, -1, 2, 3}, {3, 3}}) ==               // errata E18
        "entry 1 of sequence 0 in the block table is -1, but the pool has blocks 0 to 3");
  CHECK(message({2, 2, {0, 1, 4, 3}, {4, 1}}) ==
        "entry 0 of sequence 1 in the block table is 4, but the pool has blocks 0 to 3");
  CHECK(message({1, 1, {(std::int64_t{1} << 32) + 1}, {1}}) ==
        "entry 0 of sequence 0 in the block table is 4294967297, but the pool has blocks 0 to "
        "3");
  CHECK(message({1, 1, {0}, {1}}, 0) ==
        "entry 0 of sequence 0 in the block table is 0, but the pool has no blocks");
  CHECK(message({2, 2, {0, 1, 2, 3}, {4, 5}}) ==
        "sequence 1 cannot have 5 tokens: its row of the block table has room for 2 blocks of "
        "2");
  CHECK(message({1, 1, {0}, {3}}) ==  // flashinfer 320: more tokens than the last block holds
        "sequence 0 cannot have 3 tokens: its row of the block table has room for 1 blocks of "
        "2");
  CHECK(contains(message({1, 1, {0}, {INT64_MAX}}), "cannot have 9223372036854775807 tokens"));
  CHECK(message({2, 2, {0, 1, 2, 3}, {4, -1}}) ==
        "sequence 1 cannot have -1 tokens: its row of the block table has room for 2 blocks of "
        "2");
  CHECK(message({2, 2, {0, 1, 2}, {4, 4}}) ==
        "the block table must have 2 * 2 entries, found 3");
  CHECK(message({2, 2, {0, 1, 2, 3}, {4}}) == "the lengths must have 2 entries, found 1");
  CHECK(message({1, -1, {}, {0}}) == "a block table cannot be [1, -1]");
}

void bad_arguments(const Attend& attend) {
  const Inputs in = paged(random_sequences({5, 3}, 4, 2, 1, 5), 2);
  const auto message = [&](const Inputs& inputs, const DecodingOptions& options) {
    return message_of([&] { attend(inputs, options); });
  };
  CHECK(message(in, {}) == "accepted");
  CHECK(message({Heads(3, 4, 1, 5), in.pool, in.table}, {}) ==
        "the block table must have a row for each of Q's 3 sequences, found 2");
  CHECK(message({Heads(2, 4, 1, 6), in.pool, in.table}, {}) ==
        "the pool's d must be 6, as Q's, found 5");
  CHECK(message({in.Q, Heads(in.pool.B(), 2, 0, 5), in.table}, {}) ==
        "block_size must be at least 1, found 0");
  CHECK(message({in.Q, Heads(in.pool.B(), 3, 2, 5), in.table}, {}) ==
        "the number of KV heads must divide the number of heads, found 3 for 4");
  CHECK(message({Heads(2, 4, 1, 257), Heads(in.pool.B(), 2, 2, 257), in.table}, {}) ==
        "the head dimension d must be from 1 to 256, found 257");
  CHECK(message(in, {.splits = 0}) == "the number of splits must be from 1 to 8192, found 0");
  CHECK(message(in, {.tile = {0, 4}}) == "Br must be at least 1, found 0");
  CHECK(message(in, {.tile = {4, -1}}) == "Bc must be at least 1, found -1");
}

}  // namespace

TEST_CASE("cpu: every length from 0 on agrees with naive attention") { ragged_sizes(on_cpu); }
TEST_CASE("device: every length from 0 on agrees with naive attention") {
  if (have_device()) ragged_sizes(on_device);
}

TEST_CASE("cpu: no sequences and no blocks and odd head dimensions") { odd_shapes(on_cpu); }
TEST_CASE("device: no sequences and no blocks and odd head dimensions") {
  if (have_device()) odd_shapes(on_device);
}

TEST_CASE("cpu: blocks of any size give the bits of chapter 09") {
  as_chapter_09(on_cpu, contiguous_on_cpu);
}
TEST_CASE("device: blocks of any size give the bits of chapter 09") {
  if (have_device()) as_chapter_09(on_device, contiguous_on_device);
}

TEST_CASE("cpu: a prefill at once or in pieces") { prefill(on_cpu); }
TEST_CASE("device: a prefill at once or in pieces") {
  if (have_device()) prefill(on_device);
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

TEST_CASE("cpu: K13 flashinfer 941: memory without tokens changes nothing") {
  unused_memory(on_cpu);
}
TEST_CASE("device: K13 flashinfer 941: memory without tokens changes nothing") {
  if (have_device()) unused_memory(on_device);
}

TEST_CASE("cpu: K13 NaN reaches the rows that see it and no other") {
  nan_and_visibility(on_cpu);
}
TEST_CASE("device: K13 NaN reaches the rows that see it and no other") {
  if (have_device()) nan_and_visibility(on_device);
}

TEST_CASE("cpu: sequences may share blocks") { shared_blocks(on_cpu, contiguous_on_cpu); }
TEST_CASE("device: sequences may share blocks") {
  if (have_device()) shared_blocks(on_device, contiguous_on_device);
}

TEST_CASE("cpu: reported cases K02 K12 K13 K14") { reported_cases(on_cpu); }
TEST_CASE("device: reported cases K02 K12 K13 K14") {
  if (have_device()) reported_cases(on_device);
}

TEST_CASE("cpu: the same bits at every run K04") { repeatable(on_cpu); }
TEST_CASE("device: the same bits at every run K04") {
  if (have_device()) repeatable(on_device);
}

TEST_CASE("cpu: errata E18: entries in use are checked and named K14") { bad_tables(on_cpu); }
TEST_CASE("device: errata E18: entries in use are checked and named K14") {
  if (have_device()) bad_tables(on_device);
}

TEST_CASE("cpu: bad arguments are named") { bad_arguments(on_cpu); }
TEST_CASE("device: bad arguments are named") {
  if (have_device()) bad_arguments(on_device);
}

TEST_CASE("cpu: float64 agrees with naive attention to rounding") {
  const Lengths lengths{70, 12};
  const auto Q = random_heads<double>(2, 4, 3, 16, 1, 0),
             K = random_heads<double>(2, 2, 70, 16, 1, 1),
             V = random_heads<double>(2, 2, 70, 16, 1, 2);
  const auto in = scatter_tokens<double>(K.view(), V.view(), lengths, 9, 1, 0, std::nan(""));
  HeadsArray<double> O(2, 4, 3, 16, NAN);
  Matrix<double> LSE = Matrix<double>::Constant(8, 3, NAN);
  paged_attention_cpu<double>(Q.view(), in.pool.view(), in.table, O.view(), LSE,
                              {.splits = 6, .tile = {4, 8}, .causal = true});
  for (Index i = 0; i < 8; ++i) {
    const Index Nk = lengths[static_cast<std::size_t>(i / 4)];
    const auto expected =
        reference_attention(Q.head(i / 4, i % 4), K.head(i / 4, i % 4 / 2).topRows(Nk),
                            V.head(i / 4, i % 4 / 2).topRows(Nk), {.causal = true});
    check_close(O.head(i / 4, i % 4), expected.O, kFloat64);
    check_close(LSE.row(i).transpose(), expected.LSE, kFloat64);
  }
}

// ---- other layouts of the pool: tokens before heads, and rows that no 16 bytes begin

namespace {

// run(Q, pool, table, O, LSE): the pool in this layout.
template <class Run>
void strided(const Run& run) {
  const Sequences in = random_sequences({11, 6}, 4, 2, 2, 8, 10);
  const Inputs contiguous = paged(in, 4);
  const Index n = contiguous.pool.B();
  for (const HeadsLayout& at : {bnhd_layout(n, 2, 4, 8), HeadsLayout{n, 2, 4, 8, 77, 37, 9},
                                HeadsLayout{n, 2, 4, 8, 96, 48, 12}}) {
    CAPTURE(at.stride_n);
    const std::vector<float> memory = laid_out(contiguous.pool, at);
    Out out{Heads(2, 4, 2, 8, NAN), Floats::Constant(8, 2, NAN)};
    run(in.Q, {memory.data(), at}, contiguous.table, out);
    check_attended(out, in, {.causal = true});
  }
}

}  // namespace

TEST_CASE("cpu: errata E45: a pool may have any layout") {
  strided([](const Heads& Q, HeadsView<const float> pool, const BlockTable& table, Out& out) {
    paged_attention_cpu<float>(Q.view(), pool, table, out.O.view(), out.LSE,
                               {.splits = 2, .tile = {4, 4}, .causal = true});
  });
}
TEST_CASE("device: errata E45: a pool may have any layout") {
  if (!have_device()) return;
  strided([](const Heads& Q, HeadsView<const float> pool, const BlockTable& table, Out& out) {
    DeviceHeads<float> O(2, 4, 2, 8);
    DeviceMatrix<float> LSE(8, 2);
    paged_attention_cuda(to_device(Q), to_device(pool),
                         DeviceBlockTable(table, pool.B() / 2, pool.N()), O, LSE,
                         {.splits = 2, .tile = {4, 4}, .causal = true});
    out = {to_host(O), to_host(LSE)};
  });
}

// ---- the cache grows

namespace {

// Appends to sequence b the token k, v (Hkv, d).
using Append =
    std::function<void(Heads& pool, PagedCache&, Index b, const Floats& k, const Floats& v)>;

void append_on_cpu(Heads& pool, PagedCache& cache, Index b, const Floats& k, const Floats& v) {
  append_token_cpu<float>(pool.view(), cache, b, k, v);
}
void append_on_device(Heads& pool, PagedCache& cache, Index b, const Floats& k,
                      const Floats& v) {
  auto device = to_device(pool);
  append_token_cuda(device, cache, b, to_device(k), to_device(v));
  pool = to_host(device);
}

Floats number(float x) { return Floats::Constant(1, 1, x); }

// K14 atlas 1193: a shared prefix of 6 tokens, and each sequence appends its own.
void copy_on_write(const Append& append, const Attend& attend) {
  Heads pool(2 * 4, 1, 4, 1, NAN);
  PagedCache cache(2, 2, 4, 4);
  for (int token = 0; token < 6; ++token) append(pool, cache, 0, number(0), number(0));
  cache.fork(0, 1);
  CHECK(cache.free_blocks() == 2);
  append(pool, cache, 0, number(0), number(10));
  append(pool, cache, 1, number(0), number(20));
  CHECK(cache.free_blocks() == 1);  // the second one had the old block for itself
  CHECK(cache.table().ids == Lengths{0, 2, 0, 1});
  const Out out = attend({Heads(2, 1, 1, 1), pool, cache.table()}, {});
  CHECK(matches(out.O.head(0, 0)(0, 0), 10.0 / 7, 1e-6));
  CHECK(matches(out.O.head(1, 0)(0, 0), 20.0 / 7, 1e-6));

  // without the copy both write to slot 2 of block 1
  pool.head(4 + 1, 0)(2, 0) = 20;
  const Out wrong = attend({Heads(2, 1, 1, 1), pool, {2, 2, {0, 1, 0, 1}, {7, 7}}}, {});
  CHECK(matches(wrong.O.head(0, 0)(0, 0), 20.0 / 7, 1e-6));
}

// K14 vllm 54296: a position beyond the table is refused, and nothing has changed.
void refused_appends(const Append& append) {
  Heads pool(2 * 3, 1, 2, 1, 0.5f);
  PagedCache cache(2, 1, 3, 2);
  append(pool, cache, 1, number(3), number(4));
  append(pool, cache, 0, number(1), number(2));
  append(pool, cache, 0, number(5), number(6));
  const Heads before = pool;
  const BlockTable table = cache.table();
  CHECK(wrong::entry_unchecked(table.ids, 1, 2, 0, 2) == table.id(1, 0));  // what is meant
  CHECK(message_of([&] { append(pool, cache, 0, number(7), number(8)); }) ==
        "sequence 0 cannot grow beyond its 2 tokens: its row of the block table has room for 1 "
        "blocks of 2");
  CHECK(message_of([&] { append(pool, cache, 2, number(7), number(8)); }) ==
        "there is no sequence 2 in a cache of 2");
  CHECK(message_of([&] { append(pool, cache, -1, number(7), number(8)); }) ==
        "there is no sequence -1 in a cache of 2");
  CHECK(message_of([&] { append(pool, cache, 1, Floats(1, 2), number(8)); }) ==
        "k must be [1, 1], found [1, 2]");
  CHECK(message_of([&] { append(pool, cache, 1, number(7), Floats(2, 1)); }) ==
        "v must be [1, 1], found [2, 1]");
  Heads other(2 * 3, 1, 4, 1);
  CHECK(
      message_of([&] { append(other, cache, 1, number(7), number(8)); }) ==
      "a cache of 3 blocks of 2 tokens needs a pool of 6 blocks, for keys and values, found 6 "
      "of 4");
  CHECK(same_bits(pool, before));
  CHECK(cache.table().ids == table.ids);
  CHECK(cache.table().seq_lens == table.seq_lens);

  // a copy that finds no block: the shared one is not written to
  Heads one_block(2, 1, 2, 1, 0.5f);
  PagedCache full(2, 1, 1, 2);
  append(one_block, full, 0, number(1), number(1));
  full.fork(0, 1);
  CHECK_THROWS_WITH_AS(append(one_block, full, 1, number(5), number(5)),
                       "all 1 blocks of the pool are in use", OutOfBlocks);
  CHECK(full.table().seq_lens == Lengths{1, 1});
  CHECK(full.users(0) == 2);
  CHECK(one_block.head(0, 0)(1, 0) == 0.5f);
  full.release(0);  // now it belongs to sequence 1 alone
  append(one_block, full, 1, number(5), number(6));
  CHECK(one_block.head(0, 0)(1, 0) == 5);
  CHECK(one_block.head(1, 0)(1, 0) == 6);
}

// Any mixture of tokens, forks and ends: at each moment every sequence is what was put into it,
// no block has two owners that could write to it, and none is lost.
void a_cache_lives(const Append& append, const Attend& attend, int steps) {
  const Index B = 4, max_blocks = 3, blocks = 9, block_size = 3, Hkv = 2, d = 2;
  Heads pool(2 * blocks, Hkv, block_size, d, NAN);
  PagedCache cache(B, max_blocks, blocks, block_size);
  std::vector<std::vector<Floats>> K(B), V(B);  // the tokens that each sequence should have
  const auto words = shuffled(1 << 12, 5);
  for (int step = 0; step < steps; ++step) {
    const std::int64_t word = words[static_cast<std::size_t>(step)];
    const auto b = static_cast<std::size_t>(word % B),
               to = static_cast<std::size_t>(word / B % B);
    const std::int64_t what = word / (B * B) % 10;
    if (what == 0) {
      cache.release(static_cast<Index>(b));
      K[b].clear(), V[b].clear();
    } else if (what == 1 && b != to) {
      cache.fork(static_cast<Index>(b), static_cast<Index>(to));
      K[to] = K[b], V[to] = V[b];
    } else if (K[b].size() < 9) {
      const auto seed = static_cast<std::uint64_t>(step);
      const Floats k = random_matrix<float>(Hkv, d, seed, 0),
                   v = random_matrix<float>(Hkv, d, seed, 1);
      try {
        append(pool, cache, static_cast<Index>(b), k, v);
        K[b].push_back(k), V[b].push_back(v);
      } catch (const OutOfBlocks&) {
        CHECK(cache.free_blocks() == 0);
      }
    }
    const BlockTable& table = cache.table();
    require_block_table(table, blocks, block_size);
    std::map<std::int64_t, std::int64_t> users;
    bool right = true;
    for (Index i = 0; i < B; ++i) {
      const auto length = static_cast<Index>(K[static_cast<std::size_t>(i)].size());
      right = right && table.seq_len(i) == length;
      for (Index entry = 0; entry < max_blocks; ++entry) {
        if (entry * block_size >= length) {
          right = right && table.id(i, entry) == -1;
        } else {
          ++users[table.id(i, entry)];
        }
      }
    }
    for (Index block = 0; block < blocks; ++block) {
      right = right && cache.users(block) == users[block];
      if (users[block] == 0) users.erase(block);
    }
    CAPTURE(step);
    CHECK(right);
    CHECK(cache.free_blocks() == blocks - static_cast<Index>(users.size()));
  }
  // what is in the pool, seen through attention
  const Heads Q = random_heads<float>(B, 4, 1, d, 3, 0);
  const Out out = attend({Q, pool, cache.table()}, {.splits = 2, .tile = {4, 2}});
  for (Index b = 0; b < B; ++b) {
    const auto& keys = K[static_cast<std::size_t>(b)];
    const auto& values = V[static_cast<std::size_t>(b)];
    const auto Nk = static_cast<Index>(keys.size());
    Sequences one{first_tokens(Q, b, 1), Heads(1, Hkv, Nk, d), Heads(1, Hkv, Nk, d), {Nk}};
    for (Index j = 0; j < Nk; ++j) {
      for (Index kv = 0; kv < Hkv; ++kv) {
        one.K.head(0, kv).row(j) = keys[static_cast<std::size_t>(j)].row(kv);
        one.V.head(0, kv).row(j) = values[static_cast<std::size_t>(j)].row(kv);
      }
    }
    check_attended(of_sequence(out, b), one, {});
  }
}

}  // namespace

TEST_CASE("cpu: K14 atlas 1193: a shared block is copied before it is written") {
  copy_on_write(append_on_cpu, on_cpu);
}
TEST_CASE("device: K14 atlas 1193: a shared block is copied before it is written") {
  if (have_device()) copy_on_write(append_on_device, on_device);
}

TEST_CASE("cpu: K14 vllm 54296: a token without a place is refused") {
  refused_appends(append_on_cpu);
}
TEST_CASE("device: K14 vllm 54296: a token without a place is refused") {
  if (have_device()) refused_appends(append_on_device);
}

TEST_CASE("cpu: sequences grow and are forked and end") {
  a_cache_lives(append_on_cpu, on_cpu, 2000);
}
TEST_CASE("device: sequences grow and are forked and end") {
  if (have_device()) a_cache_lives(append_on_device, on_device, 60);
}

TEST_CASE("cpu: a cache refuses impossible sizes and forks") {
  CHECK_THROWS_AS(PagedCache(1, 1, 1, 0), std::invalid_argument);
  CHECK_THROWS_AS(PagedCache(-1, 1, 1, 1), std::invalid_argument);
  PagedCache cache(2, 1, 1, 1);
  CHECK(message_of([&] { cache.fork(1, 1); }) == "a sequence cannot be forked onto itself");
  CHECK(message_of([&] { cache.fork(0, 2); }) == "there is no sequence 2 in a cache of 2");
  CHECK(message_of([&] { cache.release(2); }) == "there is no sequence 2 in a cache of 2");
  CHECK_THROWS_AS(PagedCache(1, 0, 1, 1).append(0), std::invalid_argument);
  CHECK_THROWS_AS(PagedCache(1, 1, 0, 1).append(0), OutOfBlocks);
}

// ---- the integers

TEST_CASE("cpu: a walk ends where no row of the block sees any more") {
  for (const Index Nq : {1, 2, 5}) {
    for (const Index first_row : {0, 1, 4, 7}) {
      for (const Index rows : {1, 2, 3, 6}) {
        for (const Index offset : {-9, -3, 0, 2, 20}) {
          const BlockRows at{.b = 0, .kv = 0, .first_row = first_row, .rows = rows, .row = 0};
          for (const KeyRange keys : {KeyRange{0, 6}, {4, 9}, {3, 3}}) {
            Index end = keys.begin;
            for (Index r = 0; r < rows; ++r) {
              for (Index j = keys.begin; j < keys.end; ++j) {
                if (j <= (first_row + r) % Nq + offset) end = std::max(end, j + 1);
              }
            }
            for (const Index Bc : {1, 2, 64}) {  // in whole tiles
              const KeyRange seen = seen_keys(keys, at, Nq, Bc, offset);
              CHECK(seen.begin == keys.begin);
              CHECK(seen.end >= end);
              CHECK(seen.end <= keys.end);
              CHECK((seen.end == keys.end || seen.end - end < Bc));
              CHECK((seen.end == keys.end || (seen.end - seen.begin) % Bc == 0));
              CHECK(seen.empty() == (end == keys.begin));
            }
          }
        }
      }
    }
  }
}

// ---- errata

TEST_CASE("cpu: errata E17 E18 E41 E42 E43 and K14 pypto 470: wrong versions are wrong") {
  using wrong::Faults;
  using wrong::SmallCache;
  using wrong::walk_blocks;
  const auto gives = [](const std::vector<double>& q, const SmallCache<double>& in,
                        const Faults& faults, double expected, double right) {
    CHECK(matches(walk_blocks<double>(q, in, faults).back(), expected, 1e-4));
    CHECK(matches(walk_blocks<double>(q, in, {}).back(), right, 1e-4));
  };
  const SmallCache<double> row{
      2, {2, 4, 0, 0, 1, 3, 0, 0}, {30, 40, 0, 0, 10, 20, 0, 0}, {2, 0}, 4},
      three{2, {0, 0, 0, 0}, {1, 2, 3, 0}, {0, 1}, 3};
  gives({1}, row, {.m_never_written = true}, 38.808, 33.429077);  // the last block's softmax
  gives({1}, row, {.next_block_follows = true}, 17.2914, 33.429077);
  gives({0}, three, {.stale_columns = true}, 1.5, 2);
  gives({0}, three, {.query_i_is_token_i = true}, 1, 2);
  CHECK_THROWS_AS(walk_blocks<double>({0}, three, {.queries_up_to_seq_len = true}),
                  std::out_of_range);  // rows 1 and 2 of a Q of one row
  SmallCache<double> unassigned = three;
  unassigned.ids = {0, -1};  // right is an error: bad_tables above
  CHECK(walk_blocks<double>({0}, unassigned, {.invalid_id_skipped = true})[0] == 1.5);
  CHECK(matches(walk_blocks<double>({0}, unassigned, {.invalid_id_is_0 = true})[0], 4.0 / 3,
                1e-12));
  const SmallCache<float> low{2, {1, 1, 1, 1}, {1, 2, 3, 4}, {0, 1}, 4};
  CHECK(
      std::isnan(walk_blocks<float>({-200, -200}, low, {.one_m_is_minus_infinity = true})[1]));
  CHECK(matches(walk_blocks<float>({-200, -200}, low, {})[1], 2.5, 1e-6));
}

TEST_CASE("device: errata E44: a tile needs a second barrier") {
  if (!have_device()) return;
  const Vector<float> Q = Vector<float>::Ones(40), K = random_matrix<float>(6, 1, 0, 1),
                      V = random_matrix<float>(6, 1, 0, 2);
  DeviceArray<float> O(40);
  walk_in_shared_memory_cuda(to_device(Q), to_device(K), to_device(V), O, 3, true);
  check_close(to_host(O), reference(Q, K, V, {.scale = 1.0}).O, kFloat32);
  if (!simulated()) return;  // a race need not show
  std::string report;
  try {
    walk_in_shared_memory_cuda(to_device(Q), to_device(K), to_device(V), O, 3, false);
  } catch (const DeviceError& error) {
    report = error.what();
  }
  CHECK(contains(report, "race: "));
}

// ---- the device's own

TEST_CASE("device: CPU and device agree with each other") {
  if (!have_device()) return;
  const Inputs in = paged(random_sequences({200, 77}, 8, 2, 2, 64, 11), 16);
  const DecodingOptions options{.splits = 4, .tile = {16, 32}, .causal = true};
  check_outputs(on_device(in, options), on_cpu(in, options));
}

TEST_CASE("device: any order of the threads gives the same bits") {
  if (!have_device()) return;
  const Inputs in = paged(random_sequences({27, 9}, 4, 2, 2, 8, 12), 3);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{.splits = 5, .merge = merge, .tile = {4, 4}};
    const Out first = on_device(in, options);
    in_other_thread_orders([&] { CHECK(same_outputs(on_device(in, options), first)); });
  }
}

TEST_CASE("device: a table and scratch memory serve many layers") {
  if (!have_device()) return;
  const Sequences in = random_sequences({11, 6}, 4, 2, 1, 4, 13);
  const Inputs layers[] = {paged(in, 4), paged({in.Q, in.V, in.K, in.lengths}, 4)};
  const DeviceBlockTable table(layers[0].table, layers[0].pool.B() / 2, 4);
  for (const Merge merge : kMerges) {
    DeviceSplitParts parts(3, 8, 4);
    const DecodingOptions options{.splits = 3, .merge = merge, .tile = {4, 2}};
    for (const Inputs& layer : layers) {
      DeviceHeads<float> O(2, 4, 1, 4);
      DeviceMatrix<float> LSE(8, 1);
      paged_attention_cuda(to_device(layer.Q), to_device(layer.pool), table, O, LSE, options,
                           &parts);
      CHECK(same_outputs({to_host(O), to_host(LSE)}, on_device(layer, options)));
    }
  }
  // for another pool, or with parts of another size, it is refused
  DeviceHeads<float> O(2, 4, 1, 4), Q(2, 4, 1, 4), few(4, 2, 4, 4), wide(2 * 7, 2, 5, 4);
  DeviceMatrix<float> LSE(8, 1);
  DeviceSplitParts parts(2, 8, 4);
  const std::string made_for = "the block table was made for a pool of 7 blocks of 4 tokens, ";
  CHECK(message_of([&] { paged_attention_cuda(Q, few, table, O, LSE); }) ==
        made_for + "found 2 of 4");
  CHECK(message_of([&] { paged_attention_cuda(Q, wide, table, O, LSE); }) ==
        made_for + "found 7 of 5");
  CHECK(message_of([&] {
          paged_attention_cuda(Q, to_device(layers[0].pool), table, O, LSE, {.splits = 3},
                               &parts);
        }) == "the parts' LSE must be [3, 8], found [2, 8]");
}

TEST_CASE("device: tiles that do not fit are refused with both numbers K17") {
  if (!have_device()) return;
  const Inputs in = paged(random_sequences({64}, 1, 1, 64, 256), 16);
  CHECK(message_of([&] {
          on_device(in, {.tile = {64, 64}});
        }) == does_not_fit("tiles of Br = 64, Bc = 64 with d = 256", 279552));
  // chapter 03's tiles would just fit, but not with the place of each row
  Tiling tile{1, 1};
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  while (paged_shared_bytes({1, tile.Bc + 1}, 1) <= limit) ++tile.Bc;
  const Inputs thin = paged(random_sequences({tile.Bc + 1}, 1, 1, 1, 1), 1 << 14);
  CHECK(contains(message_of([&] {
                   on_device(thin, {.tile = {1, tile.Bc + 1}});
                 }),
                 ", and where their rows lie, need "));
}

TEST_CASE("device: every byte is accounted for") {
  if (!have_device()) return;
  for (const Index block_size : {1, 3, 8, 16, 64}) {
    for (const auto& [H, Nq, d, splits] :
         {std::array<Index, 4>{8, 1, 16, 4}, {4, 1, 6, 1}, {6, 3, 8, 5}}) {
      const Sequences in = random_sequences({64, 0, 21}, H, 2, Nq, d);
      const DecodingSizes sizes{3, H, 2, Nq, 64, d};
      for (const Merge merge : kMerges) {
        const DecodingOptions options{.splits = splits, .merge = merge, .tile = {4, 8}};
        reset_device_traffic();
        on_device(paged(in, block_size), options);
        const auto traffic = device_traffic();
        if (!counted(traffic)) return;
        CAPTURE(block_size);
        CAPTURE(static_cast<int>(merge));
        const auto predicted = predict_paged(sizes, in.lengths, block_size,
                                             decoding_tile(sizes, {4, 8}), splits, merge);
        CHECK(traffic->read_bytes == predicted.read_bytes());
        CHECK(traffic->written_bytes == predicted.written_bytes());
        // K and V are what chapter 09 moves
        std::int64_t keys_values = 0;
        for (const Index Nk : in.lengths) {
          keys_values += predict_decoding({1, H, 2, Nq, Nk, d}, decoding_tile(sizes, {4, 8}),
                                          splits, merge)
                             .keys_values;
        }
        CHECK(predicted.numbers.keys_values == keys_values);
      }
    }
  }
  // tiles of 8 keys: a block of 16 is looked up by two of them, and one of 3 by its neighbours
  CHECK(count_entries(64, 8, 16) == 8);
  CHECK(count_entries(64, 8, 1) == 64);
  CHECK(count_entries(64, 8, 64) == 8);
  CHECK(count_entries(16, 8, 3) == 3 + 4);
  CHECK(count_entries(0, 8, 3) == 0);
}

TEST_CASE("device: a causal prefill does not load what nobody sees") {
  if (!have_device()) return;
  const Sequences in = random_sequences({32}, 1, 1, 32, 4);
  const auto bytes = [&](bool causal) {
    reset_device_traffic();
    on_device(paged(in, 8), {.splits = 1, .tile = {8, 8}, .causal = causal});
    const auto traffic = device_traffic();
    return counted(traffic) ? traffic->read_bytes : 0;
  };
  // of 16 tiles 6 are hidden: 8 keys and values of 4 numbers each, and an entry
  CHECK((bytes(false) - bytes(true) == 6 * (2 * 8 * 4 * 4 + 4) || bytes(true) == 0));
}

// ---- the executable

namespace {

// The files of a paged cache: --q --kv-cache --block-table --seq-lens.
class Files {
 public:
  std::string file(const std::string& name, const NpyArray& array) const {
    return put(folder_, name, array);
  }
  template <class T>
  static NpyArray cache(const HeadsArray<T>& pool) {
    return {{2, pool.B() / 2, pool.H(), pool.N(), pool.d()}, pool.elements()};
  }
  template <class T>
  Arguments arguments(const NpyArray& q, const HeadsArray<T>& pool, const BlockTable& table,
                      bool narrow) const {
    NpyArray ids{{table.B, table.max_blocks}, table.ids};
    NpyArray lengths{{table.B}, table.seq_lens};
    if (narrow) {
      ids.data = std::vector<std::int32_t>(table.ids.begin(), table.ids.end());
      lengths.data = std::vector<std::int32_t>(table.seq_lens.begin(), table.seq_lens.end());
    }
    return {"--q",           file("q.npy", q),       "--kv-cache", file("kv.npy", cache(pool)),
            "--block-table", file("table.npy", ids), "--seq-lens", file("lens.npy", lengths)};
  }
  std::filesystem::path out() const { return folder_.path() / "out"; }

 private:
  TemporaryFolder folder_;
};

void program_on_files(const std::string& device) {
  const Files files;
  const Sequences in = random_sequences({13, 5}, 4, 2, 2, 6, 14);
  Inputs with_table = paged(in, 4);
  for (const bool narrow : {false, true}) {
    if (narrow)
      std::replace(with_table.table.ids.begin(), with_table.table.ids.end(), INT64_MIN + 7,
                   std::int64_t{-5});
    run_on(device,
           joined(files.arguments(cli::heads_to_npy(in.Q, 4), with_table.pool, with_table.table,
                                  narrow),
                  words("--causal --scale 0.7 --splits 3 --bc 4 --merge last_block")),
           files.out());
    const Out out{load_heads<float>(files.out(), "o"), load_rows<float>(files.out(), "lse")};
    CHECK(load_npy(files.out(), "lse").shape == std::vector<std::int64_t>{2, 4, 2});
    check_attended(out, in, {.causal = true, .scale = 0.7});
  }
}

}  // namespace

TEST_CASE("cpu: executable demonstration runs") {
  check_prints(run({}),
               {"O = 33.4291, LSE = 4.4402, as in chapter 03.", "10 / 7 and 20 / 7: 1.4286,",
                "38.8080   33.4291", "17.2914   33.4291", "1.3333   an error"});
}

TEST_CASE("cpu: executable reads a paged cache") { program_on_files("cpu"); }
TEST_CASE("device: executable reads a paged cache") {
  if (have_device()) program_on_files(device_kind());
}

TEST_CASE("cpu: executable keeps f8 and the rank of q") {
  const Files files;
  const auto [Q, K, V] = random_head<double>(2, 9, 3);
  HeadsArray<double> pool(2 * 3, 1, 5, 3, NAN);
  pool.head(2, 0) = K.topRows(5);
  pool.head(1, 0).topRows(4) = K.bottomRows(4);
  pool.head(3 + 2, 0) = V.topRows(5);
  pool.head(3 + 1, 0).topRows(4) = V.bottomRows(4);
  const ProgramResult r =
      run(files.arguments(to_npy(Q), pool, {1, 2, {2, 1}, {9}}, false),
          words("--splits 20 --bc 2 --causal --json --out " + files.out().string()));
  check_prints(r, {"\"seq_lens\":[9]", "\"blocks\":3", "\"block_size\":5", "\"splits\":20",
                   "\"bytes\":{\"keys_values\":432,\"table\":24}", "\"read_bytes\":null"});
  const auto expected = reference_attention(Q, K, V, {.causal = true});
  check_close(load_matrix<double>(files.out(), "o"), expected.O, kFloat64);
  check_close(load_vector<double>(files.out(), "lse"), expected.LSE, kFloat64);
}

TEST_CASE("cpu: executable takes empty inputs and random ones") {
  for (const std::string& device : usable_devices()) {
    check_prints(run(words("--batch 3 --nk 30 --heads 4 --kv-heads 2 --d 3 --block-size 7 "
                           "--splits auto --json --device " +
                           device)),
                 "\"seq_lens\":[30,25,20]");
    CHECK(run({"--n", "0", "--device", device}).exit_code == 0);
    CHECK(run({"--n", "2", "--nk", "0", "--device", device}).exit_code == 0);
  }
}

TEST_CASE("cpu: executable refuses bad usage and input in one line") {
  const Files files;
  const Heads q(2, 4, 1, 3), pool(2 * 3, 2, 2, 3);
  const auto refused = [&](const BlockTable& table, const std::string& part) {
    check_refused(files.arguments(cli::heads_to_npy(q, 4), pool, table, false), part);
  };
  refused({2, 2, {0, 1, 2, -1}, {4, 3}}, "entry 1 of sequence 1 in the block table is -1");
  refused({2, 2, {0, 1, 2, 3}, {4, 4}}, "is 3, but the pool has blocks 0 to 2");
  refused({2, 2, {0, 1, 2, 1}, {4, 5}}, "sequence 1 cannot have 5 tokens");
  refused({3, 1, {0, 1, 2}, {1, 1, 1}}, "table.npy: dimension 0 (B) is 3");
  const Arguments arguments =
      files.arguments(cli::heads_to_npy(q, 4), pool, {2, 1, {0, 1}, {1, 1}}, true);
  const auto with = [&](std::size_t which, const std::string& file) {
    Arguments changed = arguments;
    changed[which] = file;
    return changed;
  };
  check_refused(with(7, arguments[1]), "q.npy is f4");  // for the lengths
  check_refused(with(3, files.file("four.npy", cli::heads_to_npy(pool, 4))), "four.npy");
  check_refused(with(3, files.file("three.npy", {{3, 1, 2, 2, 3}, std::vector<float>(36)})),
                "three.npy: dimension 0 is 3, expected 2");
  check_refused(with(3, files.file("heads.npy", {{2, 3, 3, 2, 3}, std::vector<float>(108)})),
                "heads.npy: the number of K/V heads must divide");
  check_refused(with(3, files.file("wide.npy", {{2, 3, 2, 2, 4}, std::vector<float>(96)})),
                "wide.npy: dimension 4 (d) is 4");
  check_refused(with(3, files.file("flat.npy", {{2, 3, 2, 0, 3}, std::vector<float>()})),
                "block_size");
  check_refused(with(5, files.file("none.npy", {{2, 1}, std::vector<std::int32_t>{0, -1}})),
                "none.npy with " + arguments[7] + ": entry 0 of sequence 1");
  check_refused({"--batch", "2147483647", "--heads", "2147483647"}, "does not fit in 64 bits");
  check_refused({"--q", arguments[1]}, "--kv-cache");
  check_refused({"--heads", "3", "--kv-heads", "2"}, "must divide");
  check_refused({"--block-size", "0"}, "--block-size");
  check_refused({"--splits", "many"}, "found 'many'");
  check_refused({"--scale", "nan"}, "--scale");
  check_refused(joined(arguments, {"--block-size", "4"}), "--block-size");
  check_refused({"--device", other_device()}, other_device());
}

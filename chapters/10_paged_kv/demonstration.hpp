// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/10_paged_kv/append_token.hpp"
#include "chapters/10_paged_kv/attend.hpp"
#include "chapters/10_paged_kv/paged_traffic.hpp"
#include "chapters/10_paged_kv/scatter_tokens.hpp"
#include "chapters/10_paged_kv/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

inline constexpr Merge kMerges[] = {Merge::sequential, Merge::tree, Merge::last_block};

// A cache of one head and one channel: number x as (1, 1).
inline Matrix<double> number(double x) { return Matrix<double>::Constant(1, 1, x); }

// O of the query q, in every sequence.
inline Attended<double> ask(double q, const HeadsArray<double>& pool, const BlockTable& table) {
  return attend_on_cpu<double>({HeadsArray<double>(table.B, 1, 1, 1, q), pool, table},
                               {.scale = 1.0});
}

// Chapter 03's row in two blocks that are no neighbours.
inline void narrate_one_row() {
  const BlockTable table{1, 3, {2, 0, -1}, {4}};
  HeadsArray<double> pool(2 * 4, 1, 2, 1);
  const double tokens[4][2] = {{1, 10}, {3, 20}, {2, 30}, {4, 40}};
  for (Index j = 0; j < 4; ++j) {
    for (const Index what : {0, 1}) {
      pool.head(4 * what + table.id(0, j / 2), 0)(j % 2, 0) = tokens[j][what];
    }
  }
  print(
      "A pool of 4 blocks of 2 tokens, and one sequence of 4 tokens. Its row of the block\n"
      "table is 2, 0, -1; the last entry is not in use.\n\n"
      "  block    keys    values    tokens\n");
  for (Index block = 0; block < 4; ++block) {
    const auto K = pool.head(block, 0), V = pool.head(4 + block, 0);
    const std::string whose = block == 2 ? "0, 1" : block == 0 ? "2, 3" : "free";
    print("  {:>5}    {}, {}    {:>2}, {:>2}    {}\n", block, K(0, 0), K(1, 0), V(0, 0),
          V(1, 0), whose);
  }
  const Attended<double> out = ask(1, pool, table);
  print(
      "\nThe query 1 meets the scores 1, 3, 2, 4: O = {:.4f}, LSE = {:.4f}, as in chapter "
      "03.\n\n",
      out.O.head(0, 0)(0, 0), out.LSE(0, 0));
}

inline std::string row_text(const BlockTable& table, Index b) {
  std::string text;
  for (Index entry = 0; entry < table.max_blocks; ++entry) {
    text += (entry ? ", " : "") + std::to_string(table.id(b, entry));
  }
  return text + " (" + std::to_string(table.seq_len(b)) + ")";
}

// A sequence grows, is forked, and both grow: what happens to their last block.
inline void narrate_a_fork() {
  HeadsArray<double> pool(2 * 4, 1, 4, 1);
  PagedCache cache(2, 2, 4, 4);
  const auto append = [&](Index b, double v) {
    append_token_cpu<double>(pool.view(), cache, b, number(0), number(v));
  };
  const auto report = [&](const char* step) {
    print("  {:<28} {:<13}  {:<13}  {}, {}, {}, {}\n", step, row_text(cache.table(), 0),
          row_text(cache.table(), 1), cache.users(0), cache.users(1), cache.users(2),
          cache.users(3));
  };
  print(
      "A sequence grows, and is forked: now two read the same blocks, of 4 tokens. Rows of\n"
      "the table, with the length in brackets, and how many sequences use blocks 0 to 3:\n\n"
      "                               sequence 0     sequence 1     users\n");
  for (int token = 0; token < 6; ++token) append(0, 0);
  report("0: six tokens of value 0");
  cache.fork(0, 1);
  report("fork 0 to 1");
  append(0, 10);
  report("0: a token of value 10");
  append(1, 20);
  report("1: a token of value 20");
  const Attended<double> out = ask(0, pool, cache.table());

  // the same without copy on write: both write to slot 2 of block 1, and the second one stays
  HeadsArray<double> shared = pool;
  shared.head(4 + 1, 0)(2, 0) = 20;
  const Attended<double> wrong = ask(0, shared, {2, 2, {0, 1, 0, 1}, {7, 7}});
  print(
      "\nThe third step copied block 1 before it wrote. All scores are 0, so the outputs are\n"
      "10 / 7 and 20 / 7: {:.4f}, {:.4f}. Had both written to block 1: {:.4f}, {:.4f}.\n",
      out.O.head(0, 0)(0, 0), out.O.head(1, 0)(0, 0), wrong.O.head(0, 0)(0, 0),
      wrong.O.head(1, 0)(0, 0));
  append(0, 0);
  try {
    append(0, 0);
  } catch (const std::invalid_argument& error) {
    print("A ninth token for sequence 0:\n  {}\n\n", error.what());
  }
}

inline void show_wrong_versions() {
  using wrong::SmallCache;
  using wrong::walk_blocks;
  const SmallCache<double> row{
      2, {2, 4, 0, 0, 1, 3, 0, 0}, {30, 40, 0, 0, 10, 20, 0, 0}, {2, 0}, 4},
      three{2, {0, 0, 0, 0}, {1, 2, 3, 0}, {0, 1}, 3},
      unassigned{2, {0, 0, 0, 0}, {1, 2, 3, 0}, {0, -1}, 3};
  const SmallCache<float> low{2, {1, 1, 1, 1}, {1, 2, 3, 4}, {0, 1}, 4};
  const auto show = [](const char* what, double is, const char* right) {
    print("  {:<66} {:>8.4f}   {}\n", what, std::abs(is), right);  // no sign of a NaN
  };
  print("Wrong versions, what they give and what is right:\n\n");
  show("the row above; the maximum is read, but never written",
       walk_blocks<double>({1}, row, {.m_never_written = true})[0], "33.4291");
  show("the row above; the second block is read behind the first",
       walk_blocks<double>({1}, row, {.next_block_follows = true})[0], "33.4291");
  show("scores 0, values 1, 2, 3; l counts the slot without a token",
       walk_blocks<double>({0}, three, {.stale_columns = true})[0], "2");
  show("the same; causal, and the query is token 0 instead of the last",
       walk_blocks<double>({0}, three, {.query_i_is_token_i = true})[0], "2");
  show("the same; entry -1 in use is skipped",
       walk_blocks<double>({0}, unassigned, {.invalid_id_skipped = true})[0], "an error");
  show("the same; entry -1 in use is taken as block 0",
       walk_blocks<double>({0}, unassigned, {.invalid_id_is_0 = true})[0], "an error");
  show("scores -200 in two rows, float m[2] = {-inf}; the second row",
       walk_blocks<float>({-200, -200}, low, {.one_m_is_minus_infinity = true})[1], "2.5");
  print("\n");
}

// The first tokens of each sequence, so many of them, in blocks of a random order.
inline PagedInputs<float> in_blocks(const Batch<float>& batch,
                                    const std::vector<std::int64_t>& seq_lens, Index block_size,
                                    std::uint64_t seed, float filler) {
  auto [pool, table] = scatter_tokens<float>(batch.K.view(), batch.V.view(), seq_lens,
                                             block_size, 0, seed, filler);
  return {batch.Q, std::move(pool), std::move(table)};
}

// What a simulated device counts.
inline void compare_bytes() {
  const DecodingSizes sizes{1, 8, 2, 1, 512, 32};
  const DecodingOptions options{.splits = 4, .tile = {4, 64}};
  if (!device_available()) return;
  const auto contiguous = random_batch<float>(1, 8, 2, 1, 512, 32, 0);
  reset_device_traffic();
  contiguous_on_device(contiguous.Q, contiguous.K, contiguous.V, options);
  const std::optional<Traffic> before = device_traffic();
  if (!before) return;  // a GPU does not count
  print(
      "Bytes read, as counted: 8 query heads on 2 KV heads, 512 keys, d = 32, 4 splits,\n"
      "tiles of 64 keys:\n\n"
      "                              all    of these, the table    lengths\n"
      "  chapter 09, contiguous   {}\n",
      before->read_bytes);
  for (const Index block_size : {1, 16, 64, 512}) {
    const PagedInputs<float> in = in_blocks(contiguous, {512}, block_size, 0, 0);
    reset_device_traffic();
    attend_on_device(in, options);
    const PagedTraffic t = predict_paged(sizes, in.table.seq_lens, block_size, options.tile,
                                         *options.splits, options.merge);
    const std::int64_t read = device_traffic()->read_bytes;
    print("  {:<24} {}    {:>20}    {:>7}\n", "blocks of " + std::to_string(block_size), read,
          4 * t.table_entries, 8 * t.lengths);
    if (read != before->read_bytes + 4 * t.table_entries + 8 * t.lengths) {
      throw cli::CheckFailed("the bytes counted are not those of the formula");
    }
  }
  print("\nA tile looks up each block that it needs once, in 4 bytes; a length has 8.\n\n");
}

// Each sequence alone: against naive attention in float64, and against chapter 09.
template <class Contiguous>
void report_device(const std::string& who, const Attended<float>& out, const Batch<float>& in,
                   const std::vector<std::int64_t>& seq_lens, const DecodingOptions& options,
                   const Contiguous& contiguous) {
  const Index H = out.O.H();
  double worst_O = 0, worst_LSE = 0;
  bool same = true;
  for (Index b = 0; b < out.O.B(); ++b) {
    const Index Nk = seq_lens[static_cast<std::size_t>(b)];
    const auto Q = first_tokens(in.Q, b, out.O.N()), K = first_tokens(in.K, b, Nk),
               V = first_tokens(in.V, b, Nk);
    const auto exact =
        reference_attention_heads(Q.cast<double>().view(), K.cast<double>().view(),
                                  V.cast<double>().view(), {.causal = options.causal});
    const Attended<float> before = contiguous(Q, K, V, options);
    for (Index h = 0; h < H; ++h) {
      worst_O = std::max(worst_O, relative_error(out.O.head(b, h), exact.O.head(0, h)));
      same = same && out.O.head(b, h) == before.O.head(0, h);
    }
    const Matrix<float> LSE = out.LSE.middleRows(b * H, H);
    worst_LSE = std::max(worst_LSE, relative_error(LSE, exact.LSE));
    same = same && LSE == before.LSE;
  }
  print("  {:<24} {:.1e}  {:.1e}     {}\n", who, worst_O, worst_LSE, same ? "yes" : "no");
  if (!(worst_O <= 1e-5 && worst_LSE <= 1e-5 && same)) {
    throw cli::CheckFailed(who + " differs from the reference or from chapter 09");
  }
}

inline void compare_devices() {
  print(
      "Random sequences of 150, 37 and 81 tokens in blocks of 7, in random order, NaN where\n"
      "no token is; 8 query heads on 2 KV heads, Nq = 3, d = 40, causal, 4 splits, tiles of\n"
      "16 keys. Largest difference from naive attention in float64, and whether chapter 09\n"
      "has the same bits for each sequence, contiguous and alone:\n\n"
      "                               O      LSE    same\n");
  const std::vector<std::int64_t> seq_lens{150, 37, 81};
  const auto contiguous = random_batch<float>(3, 8, 2, 3, 150, 40, 0);
  const PagedInputs<float> paged = in_blocks(contiguous, seq_lens, 7, 0, NAN);
  for (const Merge merge : kMerges) {
    const DecodingOptions options{
        .splits = 4, .merge = merge, .tile = {64, 16}, .causal = true};
    report_device("CPU, " + std::string(merge_name(merge)), attend_on_cpu(paged, options),
                  contiguous, seq_lens, options, contiguous_on_cpu);
    if (!device_available()) continue;
    report_device(std::string(device_kind()) + ", " + merge_name(merge),
                  attend_on_device(paged, options), contiguous, seq_lens, options,
                  contiguous_on_device);
  }
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
  }
  print("\n");
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_one_row();
  narrate_a_fork();
  show_wrong_versions();
  compare_bytes();
  compare_devices();
}

}  // namespace flash_steps

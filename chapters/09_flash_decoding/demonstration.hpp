// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "chapters/09_flash_decoding/decode.hpp"
#include "chapters/09_flash_decoding/decoding_traffic.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/split_walk.hpp"
#include "chapters/09_flash_decoding/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

inline constexpr Merge kMerges[] = {Merge::sequential, Merge::tree, Merge::last_block};

inline Batch<float> random_batch(const DecodingSizes& s) {
  return flash_steps::random_batch<float>(s.B, s.H, s.Hkv, s.Nq, s.Nk, s.d, 0);
}

// Chapter 03's row, a split for each half of its keys, and one that gets none.
inline void narrate_one_row() {
  print(
      "One query, four keys, scores 1, 3, 2, 4, values 10, 20, 30, 40. Three splits of one "
      "tile "
      "of two keys:\n"
      "each is attention to its own keys, and needs no other.\n\n"
      "  split    keys       o_s     LSE_s    exp(LSE_s - LSE)\n");
  Matrix<double> q(1, 1), K(4, 1), V(4, 1);
  q << 1;
  K << 1, 3, 2, 4;
  V << 10, 20, 30, 40;
  const BlockRows at{.b = 0, .kv = 0, .first_row = 0, .rows = 1, .row = 0};
  const auto load = [&](Index k_start, Index cols, Matrix<double>& Kj, Matrix<double>& Vj) {
    Kj = K.middleRows(k_start, cols);
    Vj = V.middleRows(k_start, cols);
  };
  SplitParts<double> parts(3, 1, 1);
  for (Index s = 0; s < 3; ++s) {
    const KeyRange keys = split_keys(4, 2, 3, s);
    if (keys.empty()) {
      store_empty_part(parts, s, at);
    } else {
      store_part(parts, s, at, walk_split<double>(q, at, 1, keys, 2, 4, 1.0, load));
    }
  }
  const SplitParts<double> stored = parts;
  HeadsArray<double> O(1, 1, 1, 1);
  Matrix<double> LSE(1, 1);
  merge_splits_cpu<double>(parts, O.view(), LSE, Merge::sequential);
  for (Index s = 0; s < 3; ++s) {
    const KeyRange keys = split_keys(4, 2, 3, s);
    const double lse = stored.LSE(s, 0);
    if (keys.empty()) {
      print("  {:>5}    none    unread      -inf              0\n", s);
    } else {
      print("  {:>5}    {}, {}   {:>7.4f}   {:>7.4f}              {:.4f}\n", s, keys.begin,
            keys.end - 1, stored.O(s, 0), lse, std::exp(lse - LSE(0, 0)));
    }
  }
  print("\nMerged: O = {:.4f}, LSE = {:.4f}, as without splitting.\n", O.head(0, 0)(0, 0),
        LSE(0, 0));
  print("The average of the two outputs would be {:.4f}.\n\n",
        wrong::merge_by_average({{stored.O(0, 0), 0}, {stored.O(1, 0), 0}}));
  print(
      "Atomic operations cannot merge (m, l, o): parts (0, 1, 1) and (1, 1, 2) give {:.4f} by "
      "the maximum\n"
      "of m and the sums of l and o; right is {:.4f}.\n\n",
      wrong::merge_atomically({{0, 1, 1}, {1, 1, 2}}),
      (std::exp(-1.0) * 1 + 2) / (std::exp(-1.0) * 1 + 1));
}

// Who is at work, and what the parts cost: integers only.
inline void count_blocks() {
  const DecodingSizes sizes{1, 32, 8, 1, 131072, 128};
  const Tiling tile{4, 64};
  const Index slots = 2 * 132, Tc = ceil_div(sizes.Nk, tile.Bc);
  const Index automatic = choose_splits(sizes, tile, slots);
  print(
      "One new token, {} query heads on {} KV heads, {} keys, d = {}, on a GPU that runs {} "
      "blocks at the same\n"
      "time. With one query tile no loop order helps; more blocks do:\n\n"
      "  splits   blocks   at work   tiles one after another   parts, of K and V's bytes\n",
      sizes.H, sizes.Hkv, sizes.Nk, sizes.d, slots);
  for (const Index splits : {Index{1}, Index{4}, automatic, Index{128}, Tc}) {
    const Index blocks = splits * sizes.Hkv;
    const auto t = predict_decoding(sizes, tile, splits, Merge::sequential);
    print("  {:>6}   {:>6}   {:>6}%   {:>23}   {:>24.2f}%{}\n", splits, blocks,
          100 * std::min(blocks, slots) / slots, ceil_div(blocks, slots) * ceil_div(Tc, splits),
          100.0 * static_cast<double>(t.parts_written + t.parts_read) /
              static_cast<double>(t.keys_values),
          splits == automatic ? "   auto"
          : splits == Tc      ? "   one split per tile"
                              : "");
  }
  print("\n");
}

inline void compare_devices() {
  const DecodingSizes sizes{2, 8, 2, 3, 150, 40};
  const Batch<float> in = random_batch(sizes);
  const auto exact =
      reference_attention_heads(in.Q.cast<double>().view(), in.K.cast<double>().view(),
                                in.V.cast<double>().view(), {.causal = true});
  print(
      "Random heads: B = {}, {} query heads on {} KV heads, Nq = {}, Nk = {}, d = {}, causal, "
      "4 "
      "splits of tiles of\n"
      "16 keys. Largest difference from naive attention in float64:\n"
      "                               O      LSE\n",
      sizes.B, sizes.H, sizes.Hkv, sizes.Nq, sizes.Nk, sizes.d);
  const auto report = [&](const std::string& who, const Decoded<float>& out) {
    const double e[] = {relative_error(out.O, exact.O), relative_error(out.LSE, exact.LSE)};
    print("  {:<24} {:.1e}  {:.1e}\n", who, e[0], e[1]);
    if (!(e[0] <= 1e-5 && e[1] <= 1e-5)) {
      throw cli::CheckFailed(who + " differs from the reference");
    }
  };
  for (const Merge merge : kMerges) {
    const DecodingOptions options{
        .splits = 4, .merge = merge, .tile = {64, 16}, .causal = true};
    report("CPU, " + std::string(merge_name(merge)), decode_on_cpu(in, options));
    if (!device_available()) continue;
    report(std::string(device_kind()) + ", " + merge_name(merge),
           decode_on_device(in, options));
  }
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
  }
  print("\n");
}

// What a simulated device counts.
inline void compare_bytes() {
  const DecodingSizes sizes{1, 8, 2, 1, 512, 32};
  const Tiling tile{4, 16};
  const Batch<float> in = random_batch(sizes);
  const Index must = 2 * sizes.Hkv * sizes.Nk * sizes.d * 4;
  std::optional<Traffic> moved;
  if (!device_available()) return;
  decode_on_device(in, {.splits = 1, .tile = tile}, &moved);
  if (!moved) return;  // a GPU does not count
  print(
      "Bytes counted: {} query heads on {} KV heads, {} keys, d = {}, tiles of 16 keys. K and "
      "V "
      "are {} bytes.\n\n"
      "  splits       read    written    beyond K and V\n",
      sizes.H, sizes.Hkv, sizes.Nk, sizes.d, must);
  for (const Index splits : {1, 4, 8, 32}) {
    decode_on_device(in, {.splits = splits, .tile = tile}, &moved);
    const std::int64_t all = moved->read_bytes + moved->written_bytes;
    print("  {:>6}   {:>8}   {:>8}   {:>14.1f}%\n", splits, moved->read_bytes,
          moved->written_bytes,
          100.0 * static_cast<double>(all - must) / static_cast<double>(must));
  }
  print("\n");
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_one_row();
  count_blocks();
  compare_bytes();
  compare_devices();
}

}  // namespace flash_steps

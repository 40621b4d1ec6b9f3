// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/08_loop_order/attend.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

// Throws cli::CheckFailed if somebody counted, and not what the formula says.
inline void check_counts(const std::string& what, const std::optional<Counts>& counted,
                         const Counts& predicted) {
  if (!counted || *counted == predicted) return;
  throw cli::CheckFailed(what + " moves " + std::to_string(counted->total()) +
                         " elements, but the formula says " +
                         std::to_string(predicted.total()));
}

// kv_outer's O, m and l in memory after so many keys: what it ends with if there are no others.
inline void narrate_one_row() {
  Vector<float> scores(4), values(4);
  scores << 1, 3, 2, 4;
  values << 10, 20, 30, 40;
  print(
      "The row of chapter 03 again, scores 1, 3, 2, 4 and values 10, 20, 30, 40, two keys a "
      "tile. With the\nkeys outside, the row lies in memory between two K/V tiles:\n\n"
      "                         O, normalised\n"
      "  K/V tile   m       l   every tile      once\n");
  for (const Index keys : {2, 4}) {
    Matrix<float> O(1, 1);
    Vector<float> m(1), l(1);
    kv_outer_cpu<float>(Matrix<float>::Ones(1, 1), scores.head(keys), values.head(keys), O, m,
                        l, {.Br = 1, .Bc = 2}, false, 1.0);
    print("  {:>8} {:>3.0f} {:>7.4f} {:>12.4f} {:>9.4f}\n", keys / 2 - 1, m[0], l[0], O(0, 0),
          O(0, 0) * l[0]);
  }
  print(
      "\nLeft, FlashAttention: O is always the attention over the keys so far. Right, a plain "
      "sum, which the\nlast tile divides by l: FlashAttention-2 does so (and never stores the "
      "sum).\n\n");
}

inline void compare_traffic() {
  const Index N = 1024, d = 64;
  print(
      "Elements that one head of N = {}, d = {} moves, statistics included:\n\n"
      "   Br   Bc    q_outer   kv_outer   fewer\n",
      N, d);
  const auto total = [&](LoopOrder order, Tiling tile) {
    return predict_loop_order(order, N, N, d, tile, false).total();
  };
  for (const Tiling tile : {Tiling{64, 32},
                            {64, 64},
                            {64, 96},
                            {64, 104},
                            {64, 128},
                            {64, 256},
                            {128, 64},
                            {128, 128}}) {
    const auto q = total(LoopOrder::q_outer, tile), kv = total(LoopOrder::kv_outer, tile);
    print("  {:>3} {:>4} {:>10} {:>10}   {}\n", tile.Br, tile.Bc, q, kv,
          q < kv ? "q_outer" : "kv_outer");
  }
  print(
      "\nWith the same tiles it is 2 / Br against 3 / Bc: from about Bc = 1.5 Br on, kv_outer "
      "moves less. But\nthe tile that stays should be the large one: q_outer with (128, 64) "
      "against kv_outer with (64, 128)\nis {} to {}.\n\n",
      total(LoopOrder::q_outer, {128, 64}), total(LoopOrder::kv_outer, {64, 128}));
}

inline void compare_parallelism() {
  const Index N = 16384, B = 128;
  const Index tiles = ceil_div(N, B);
  print(
      "Blocks of a GPU that can work at the same time, {} keys, tiles of {}. (An H100 has 132 "
      "multiprocessors.)\n\n"
      "                  a block a    a block a Q tile,      a block a\n"
      "  batch * heads        head    as many queries, one   K/V tile\n",
      N, B);
  for (const Index BH : {1, 4, 32, 512}) {
    print("  {:>13} {:>11} {:>18} {:>6} {:>10}\n", BH, BH, BH * tiles,
          BH * ceil_div(Index{1}, B), BH * tiles);
  }
  print(
      "\nIn the forward pass FlashAttention ran a block a head, FlashAttention-2 runs a block "
      "a Q "
      "tile. With one\nquery, as in decoding, that is the same. A block a K/V tile is in "
      "neither: it needs this chapter's turns,\nor chapter 09.\n\n");
}

inline void show_wrong_versions() {
  const std::vector<double> scores{0, 2, 1, 3}, values{1, 2, 3, 4};
  const auto printed = [&](wrong::OldFactor factor) {
    return wrong::normalise_every_tile(scores, values, 2, factor);
  };
  const Matrix<double> notes = wrong::notes_version_2(2, 2, 1, 1, 1);
  print(
      "Wrong versions. Normalised every tile, scores 0, 2, 1, 3, values 1 to 4, two keys a "
      "tile: {:.6f}.\n  (l_old / l_new)^-1, as printed                  {:.6f}\n"
      "  l_old / l_new without e^(m_old - m_new)         {:.6f}\n"
      "Two blocks at one row, (m, l, O) = (0, 1, 1) and (1, 1, 2): 1.731059.\n"
      "  atomicMax on m, atomicAdd on l and O            {:.6f}\n"
      "The notes' \"version 2\", whose loops hold no update  {}\n\n",
      printed(wrong::OldFactor::right), printed(wrong::OldFactor::inverted),
      printed(wrong::OldFactor::no_change_of_maximum),
      wrong::merge_with_atomics({{0, 1, 1}, {1, 1, 2}}), std::abs(notes(0, 0)));
}

inline void compare_devices() {
  const Index Nq = 150, Nk = 100, d = 40;
  const Head<float> head = random_head(Nq, Nk, d, 0);
  const auto exact = reference_attention(head.Q.cast<double>(), head.K.cast<double>(),
                                         head.V.cast<double>(), {.causal = true});
  print(
      "A random head: Nq = {}, Nk = {}, d = {}, causal, tiles of 16 by 32. Largest difference "
      "from naive\nattention in float64, and elements moved, as counted:\n\n"
      "                                              O      LSE   counted   formula\n",
      Nq, Nk, d);
  const auto report = [&](const std::string& name, const Job& job, const Attention<float>& a) {
    const double O = relative_error(a.O, exact.O), LSE = relative_error(a.LSE, exact.LSE);
    const Counts predicted = predict_loop_order(job.order, Nq, Nk, d, job.tile, true);
    print("  {:<38}  {:.1e}  {:.1e} {:>9} {:>9}\n", name, O, LSE,
          a.counts ? std::to_string(a.counts->total()) : "-", predicted.total());
    if (!(O <= 1e-5 && LSE <= 1e-5)) {
      throw cli::CheckFailed(name + " differs from the reference");
    }
    check_counts(name, a.counts, predicted);
  };
  const auto run = [&](const std::string& name, LoopOrder order, Normalise when) {
    const Job job{.order = order, .when = when, .tile = {.Br = 16, .Bc = 32}, .causal = true};
    report("CPU, " + name, job, attend_on_cpu(head, job));
    if (!device_available()) return;
    report(std::string(device_kind()) + ", " + name, job, attend_on_device(head, job));
  };
  run("q_outer", LoopOrder::q_outer, Normalise::once);
  run("kv_outer, normalised once", LoopOrder::kv_outer, Normalise::once);
  run("kv_outer, normalised every tile", LoopOrder::kv_outer, Normalise::every_tile);
  if (!device_available()) {
    print("  CUDA kernels: not run, this build wants a GPU, and there is none\n");
  }
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_one_row();
  compare_traffic();
  compare_parallelism();
  show_wrong_versions();
  compare_devices();
}

}  // namespace flash_steps

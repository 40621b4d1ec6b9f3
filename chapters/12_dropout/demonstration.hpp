// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/12_dropout/attend.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/random_heads.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

inline HeadsArray<float> column(const std::vector<float>& values) {
  HeadsArray<float> heads(1, 1, static_cast<Index>(values.size()), 1);
  heads.elements() = values;
  return heads;
}

inline Mask one_row(const std::vector<std::uint8_t>& kept) {
  Mask mask(1, 1, 1, static_cast<Index>(kept.size()));
  mask.elements() = kept;
  return mask;
}

// One query of 1 against keys that are their own scores.
inline Result<float> one_query(const std::vector<float>& scores,
                               const std::vector<float>& values,
                               const std::vector<std::uint8_t>& kept, double p, bool backward) {
  Problem<float> x{
      column({1}), column(scores), column(values), {}, {.p = p}, one_row(kept), {}, false, 1.0};
  if (backward) x.dO = column({1});
  return compute_on_cpu(x);
}

inline void show_the_mask() {
  const Dropout dropout{.p = 0.5, .seed = 7, .offset = 0};
  print(
      "The mask is a function of the place. p = {}, seed = {}: a number below {} of 2^32 "
      "drops.\n"
      "Head 0, queries 0 to 3, keys 0 to 7, a call of Philox having the numbers of four "
      "keys:\n\n",
      dropout.p, dropout.seed, PhiloxMask(dropout, 1).threshold);
  for (std::uint32_t row = 0; row < 4; ++row) {
    print("  query {}:", row);
    for (std::uint32_t quad = 0; quad < 2; ++quad) {
      for (const std::uint32_t word : philox({{quad, row, 0, 0}}, dropout.seed).word) {
        print("  {:>10}{}", word, word >= (1u << 31) ? '*' : ' ');
      }
    }
    print("\n");
  }
  print("\nKept are those with a star.\n\n");
}

inline void narrate_the_order() {
  const float ln3 = std::log(3.0f);
  print(
      "One query, weights P = 0.25 and 0.75, values 1 and 0: O = 0.25 without dropout. With "
      "p = 0.5, all\nfour masks, each as likely:\n\n"
      "  mask    drop what the softmax gave    drop, then sum\n");
  double right = 0;
  for (const int mask : {0, 1, 2, 3}) {
    const std::vector<std::uint8_t> kept{static_cast<std::uint8_t>(mask & 1),
                                         static_cast<std::uint8_t>(mask >> 1)};
    const double O = one_query({0, ln3}, {1, 0}, kept, 0.5, false).O.elements()[0];
    right += O / 4;
    const wrong::DropoutRow row{{0, std::log(3.0)},
                                {1, 0},
                                {static_cast<double>(kept[0]), static_cast<double>(kept[1])},
                                0.5};
    const double wrong_O = wrong::dropout_before_the_sum(row);
    print("  {} {} {:>29.2f} {:>17.2f}\n", kept[0], kept[1], O,
          std::isnan(wrong_O) ? NAN : wrong_O);  // of either sign
  }
  print(
      "  mean {:>28.2f}\n\nThe second order makes the kept weights sum to 1 again: no mean "
      "over "
      "masks brings P back.\n\n",
      right);
  if (!(std::abs(right - 0.25) < 1e-6)) throw cli::CheckFailed("the mean over masks is wrong");
}

inline void narrate_one_row_backward() {
  const std::vector<float> scores{0, 1, 2}, values{1, 2, 4};
  const Result<float> y = one_query(scores, values, {1, 0, 1}, 0.5, true);
  const float LSE = y.LSE(0, 0), O = y.O.elements()[0];
  const wrong::DropoutRow row{{0, 1, 2}, {1, 2, 4}, {1, 0, 1}, 0.5};
  const std::vector<double> wrong_dS = wrong::dS_from_dropped_weights(row);
  print(
      "Backward by hand: scores 0, 1, 2, values 1, 2, 4, mask 1 0 1, p = 0.5, dO = 1. "
      "LSE = {:.4f}, O = D = {:.4f}.\n\n"
      "  P        Z    Z P = dV    dP = Z V    dS = P (dP - D)    with Z P for P\n",
      LSE, O);
  double sum = 0, wrong_sum = 0;
  for (std::size_t j = 0; j < 3; ++j) {
    const double P = std::exp(scores[j] - LSE), Z = j == 1 ? 0 : 2, dS = y.dK.elements()[j];
    sum += dS;
    wrong_sum += wrong_dS[j];
    print("  {:.4f}   {} {:>11.4f} {:>11.0f} {:>18.4f} {:>17.4f}\n", P, Z, y.dV.elements()[j],
          Z * values[j], dS, wrong_dS[j] + 0.0);  // not -0
  }
  print(
      "  sum {:>48.4f} {:>17.4f}\n\nA shift of all scores changes nothing, so dS sums to "
      "0.\n\n",
      std::abs(sum) < 1e-6 ? 0.0 : sum, wrong_sum);
}

inline void compare_memory() {
  print(
      "What carries the mask to the backward pass, 16 heads, in bytes:\n\n"
      "          N    stored, a byte a weight    seed, offset and p\n");
  for (const Index N : {1024, 4096, 16384}) {
    print("  {:>9} {:>26} {:>21}\n", N, 16 * N * N, sizeof(Dropout));
  }
  print("\n");
}

inline void compare_devices() {
  const Index B = 2, H = 4, Hkv = 2, Nq = 70, Nk = 50, d = 24;
  Problem<float> x;
  x.Q = random_heads<float>(B, H, Nq, d, 0, 0);
  x.K = random_heads<float>(B, Hkv, Nk, d, 0, 1);
  x.V = random_heads<float>(B, Hkv, Nk, d, 0, 2);
  x.dO = random_heads<float>(B, H, Nq, d, 1, 0);
  x.dropout = {.p = 0.1, .seed = 42, .offset = 3};
  x.tile = {16, 32};
  x.causal = true;

  const Mask mask = computed_mask(B, H, Nq, Nk, x.dropout, false);
  ReferenceHeadsOptions options{.causal = true, .dropout = x.dropout.p};
  for (Index head = 0; head < B * H; ++head) {
    options.masks.emplace_back(mask.head(head / H, head % H));
  }
  const auto Q = x.Q.cast<double>(), K = x.K.cast<double>(), V = x.V.cast<double>(),
             dO = x.dO->cast<double>();
  const auto forward = reference_attention_heads(Q.view(), K.view(), V.view(), options);
  const auto backward =
      reference_backward_heads(Q.view(), K.view(), V.view(), dO.view(), options);
  print(
      "A random batch: B = {}, {} query heads on {} key/value heads, Nq = {}, Nk = {}, d = {}, "
      "causal,\np = {}. Largest difference from naive attention in float64 with that mask, "
      "relative to the\nlargest value where that is more than 1:\n"
      "                              O      LSE       dQ       dK       dV\n",
      B, H, Hkv, Nq, Nk, d, x.dropout.p);
  const auto report = [&](const std::string& name, const Result<float>& y) {
    const double errors[] = {relative_error(y.O, forward.O), relative_error(y.LSE, forward.LSE),
                             relative_error(y.dQ, backward.dQ),
                             relative_error(y.dK, backward.dK),
                             relative_error(y.dV, backward.dV)};
    print("  {:<22}", name);
    for (const double e : errors) print("  {:.1e}", e);
    print("\n");
    for (const double e : errors) {
      if (!(e <= 1e-4)) throw cli::CheckFailed(name + " differs from the reference");
    }
  };
  const Result<float> computed = compute_on_cpu(x);
  report("CPU", computed);
  Problem<float> with_stored = x;
  with_stored.mask = mask;
  const Result<float> stored = compute_on_cpu(with_stored);
  const bool same = stored.O.elements() == computed.O.elements() &&
                    stored.dQ.elements() == computed.dQ.elements() &&
                    stored.dK.elements() == computed.dK.elements() &&
                    stored.dV.elements() == computed.dV.elements();
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
  } else {
    report("CUDA kernels (" + std::string(device_kind()) + ")", compute_on_device(x));
    const Mask there = computed_mask(B, H, Nq, Nk, x.dropout, true);
    print("\nThe mask's {} bits are the same on both: {}.", mask.elements().size(),
          there.elements() == mask.elements() ? "yes" : "no");
    if (there.elements() != mask.elements()) throw cli::CheckFailed("the masks differ");
  }
  print("\nWith the mask stored instead of computed, all results have the same bits: {}.\n",
        same ? "yes" : "no");
  if (!same) throw cli::CheckFailed("a stored mask gives another result");
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  show_the_mask();
  narrate_the_order();
  narrate_one_row_backward();
  compare_memory();
  compare_devices();
}

}  // namespace flash_steps

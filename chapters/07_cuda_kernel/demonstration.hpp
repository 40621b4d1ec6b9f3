// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <cstdint>
#include <string>

#include "chapters/07_cuda_kernel/attend.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "chapters/07_cuda_kernel/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

inline void narrate_strides() {
  print(
      "Where row n of head h of batch b begins: b stride_b + h stride_h + n stride_n. B = 2, H "
      "= 3, N = 4, d = 2:\n\n"
      "  order in memory    stride_b stride_h stride_n    (0, 0, 1)    (0, 1, 0)    (1, 2, "
      "3)\n");
  const auto row = [](const char* name, const HeadsLayout& at) {
    print("  {:<18} {:>8} {:>8} {:>8} {:>12} {:>12} {:>12}\n", name, at.stride_b, at.stride_h,
          at.stride_n, at.offset(0, 0, 1), at.offset(0, 1, 0), at.offset(1, 2, 3));
  };
  row("[B, H, N, d]", bhnd_layout(2, 3, 4, 2));
  row("[B, N, H, d]", bnhd_layout(2, 3, 4, 2));
  const HeadsLayout large = bhnd_layout(5, 32, 131072, 128);
  print("\n32 heads of 131072 tokens of 128 numbers: batch 4 begins at {}. In 32 bits: {}.\n\n",
        large.offset(4, 0, 0), wrong::offset_32(large, 4, 0, 0));
}

inline void narrate_grid() {
  const std::int64_t B = 1, H = 4, Hkv = 2, tiles = 2;
  print(
      "One row of blocks for the whole batch. B = {}, H = {}, Hkv = {}, {} query tiles a "
      "head:\n\n  block        ",
      B, H, Hkv, tiles);
  for (std::int64_t block = 0; block < B * H * tiles; ++block) print("{:>4}", block);
  print("\n  query tile   ");
  for (std::int64_t block = 0; block < B * H * tiles; ++block) {
    print("{:>4}", tile_place(block, tiles, B, H).i);
  }
  print("\n  query head   ");
  for (std::int64_t block = 0; block < B * H * tiles; ++block) {
    print("{:>4}", tile_place(block, tiles, B, H).h);
  }
  print("\n  K/V head     ");
  for (std::int64_t block = 0; block < B * H * tiles; ++block) {
    print("{:>4}", kv_head(tile_place(block, tiles, B, H).h, H, Hkv));
  }
  print("\n  (h % Hkv     ");
  for (std::int64_t block = 0; block < B * H * tiles; ++block) {
    print("{:>4}", wrong::kv_head_interleaved(tile_place(block, tiles, B, H).h, Hkv));
  }
  print("   would be wrong)\n\n");
}

// Two query heads, 1 and 2, on one K/V head with keys and values 0 and 1; dO = 1.
inline void narrate_group() {
  Batch<double> in{HeadsArray<double>(1, 2, 1, 1), HeadsArray<double>(1, 1, 2, 1),
                   HeadsArray<double>(1, 1, 2, 1)};
  in.Q.elements() = {1, 2};
  in.K.elements() = {0, 1};
  in.V.elements() = {0, 1};
  const Settings settings{.scale = 1.0};
  const HeadsArray<double> dO(1, 2, 1, 1, 1.0);
  const auto both = backward_cpu<double>(in, forward_cpu(in, settings), dO, nullptr, settings);
  print(
      "Gradients of a shared key: one query in each of two heads, 1 and 2; one K/V head, keys "
      "0, 1, values 0, 1; dO = 1.\n\n"
      "                    dK                 dV\n");
  for (const double q : {1.0, 2.0}) {
    Batch<double> one{HeadsArray<double>(1, 1, 1, 1, q), in.K, in.V};
    const HeadsArray<double> dO1(1, 1, 1, 1, 1.0);
    const auto g =
        backward_cpu<double>(one, forward_cpu(one, settings), dO1, nullptr, settings);
    print("  head {:.0f} alone   {:>8.4f} {:>7.4f}   {:>8.4f} {:>7.4f}\n", q - 1,
          g.dK.elements()[0], g.dK.elements()[1], g.dV.elements()[0], g.dV.elements()[1]);
  }
  print("  the group      {:>8.4f} {:>7.4f}   {:>8.4f} {:>7.4f}\n\n", both.dK.elements()[0],
        both.dK.elements()[1], both.dV.elements()[0], both.dV.elements()[1]);
}

inline void compare_devices() {
  const std::int64_t B = 2, H = 4, Hkv = 2, Nq = 150, Nk = 100, d = 40;
  const auto in = random_batch<float>(B, H, Hkv, Nq, Nk, d, 0);
  const auto dO = random_heads<float>(B, H, Nq, d, 1, 0);
  Settings settings{.tile = {32, 32}, .backward_tile = {32, 32}, .causal = true};
  const Batch<double> wide = in.cast<double>();
  const HeadsView<const double> Q = wide.Q.view(), K = wide.K.view(), V = wide.V.view();
  const auto exact = reference_attention_heads(Q, K, V, {.causal = true});
  const auto exact_gradients =
      reference_backward_heads(Q, K, V, dO.cast<double>().view(), {.causal = true});
  print(
      "A random batch, causal: B = {}, H = {}, Hkv = {}, Nq = {}, Nk = {}, d = {}. Largest "
      "difference from naive attention\nin float64, relative to the largest value where that "
      "is more than 1:\n"
      "                                         O      LSE       dQ       dK       dV\n",
      B, H, Hkv, Nq, Nk, d);
  const auto forward_errors = [&](const std::string& name, const Forward<float>& out) {
    const double O = relative_error(out.O, exact.O), LSE = relative_error(out.LSE, exact.LSE);
    print("  {:<33} {:.1e}  {:.1e}", name, O, LSE);
    if (!(O <= 1e-5 && LSE <= 1e-5)) throw cli::CheckFailed(name + " differs");
  };
  const auto gradient_errors = [&](const std::string& name, const Gradients<float>& out) {
    const double errors[] = {relative_error(out.dQ, exact_gradients.dQ),
                             relative_error(out.dK, exact_gradients.dK),
                             relative_error(out.dV, exact_gradients.dV)};
    for (const double e : errors) {
      print("  {:.1e}", e);
      if (!(e <= 1e-4)) throw cli::CheckFailed("a gradient of " + name + " differs");
    }
    print("\n");
  };
  const Forward<float> on_cpu = forward_cpu(in, settings);
  forward_errors("CPU", on_cpu);
  gradient_errors("CPU", backward_cpu<float>(in, on_cpu, dO, nullptr, settings));
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
    return;
  }
  const std::string kind = " (" + std::string(device_kind()) + ")";
  const Forward<float> on_device = forward_device(in, settings);
  forward_errors("CUDA kernels" + kind, on_device);
  gradient_errors("CUDA kernels", backward_device(in, on_device, dO, nullptr, settings));
  for (std::int64_t rung = 1; rung <= kRungs; ++rung) {
    settings.rung = rung;
    forward_errors("rung " + std::to_string(rung) + ", " + rung_name(rung),
                   forward_device(in, settings));
    print("\n");
  }
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_strides();
  narrate_grid();
  narrate_group();
  compare_devices();
}

}  // namespace flash_steps

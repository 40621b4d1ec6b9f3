// What the executable tells without arguments. For main.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_tile.hpp"
#include "chapters/06_backward_recompute/backward_traffic.hpp"
#include "chapters/06_backward_recompute/gradients.hpp"
#include "chapters/06_backward_recompute/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/relative_error.hpp"

namespace flash_steps {

using cli::print;

inline void narrate_one_row() {
  Matrix<double> Q(1, 1), K(2, 1), V(2, 1), dO(1, 1), O(1, 1);
  Q << 1;
  K << 1, 2;
  V << 0, 1;
  dO << 1;
  Vector<double> m(1), l(1), LSE(1), delta(1);
  saved_forward_cpu<double>(Q, K, V, O, m, l, LSE, {1, 1}, false, 1.0);
  compute_delta<double>(dO, O, nullptr, delta);
  print(
      "One query of 1, keys 1, 2, values 0, 1, dO = 1, one key a tile. The forward pass saved "
      "m = {:.0f}, l = {:.4f}, O = {:.4f};\nso D = dO * O = {:.4f}, the same for all tiles:\n\n"
      "  key    S        P   dP = dO V   dS = P (dP - D)   dQ so far       dK       dV\n",
      m[0], l[0], O(0, 0), delta[0]);
  Matrix<double> dQ = Matrix<double>::Zero(1, 1), dK = Matrix<double>::Zero(2, 1), dV = dK;
  const Index one[] = {1};
  for (Index j = 0; j < 2; ++j) {
    BackwardTile<double> tile;
    rebuild_P<double>(tile, Q, K.row(j), m, l, 1.0, one);
    add_dV<double>(dV.middleRows(j, 1), tile, dO, one);
    compute_dP<double>(tile, dO, V.row(j));
    const double dP = tile.dS(0, 0);
    compute_dS<double>(tile, delta, one);
    add_dQ<double>(dQ, tile, K.row(j), 1.0, one);
    add_dK<double>(dK.middleRows(j, 1), tile, Q, 1.0, one);
    print("  {:>3} {:>4.0f} {:>8.4f} {:>11.0f} {:>17.4f} {:>11.4f} {:>8.4f} {:>8.4f}\n", j,
          Q(0, 0) * K(j, 0), tile.P(0, 0), dP, tile.dS(0, 0), dQ(0, 0), dK(j, 0), dV(j, 0));
  }
  const Matrix<double> wrong = wrong::dS_with_tile_sums(Q, K, V, m, l, dO, 1, 1.0);
  print(
      "\ndS sums to 0. With the row sum of P dP over one tile in the place of D it does not: "
      "dS "
      "= {:.4f}, {:.4f}, dQ = {:.4f}.\n\n",
      wrong(0, 0), wrong(0, 1), wrong(0, 0) * K(0, 0) + wrong(0, 1) * K(1, 0));
}

inline void show_hidden_scores() {
  print(
      "The mask applies again. Causal, queries 1, 1, keys 0, 1: row 0 sees key 0 alone, so m = "
      "0, l = 1.\nWithout the mask the weight of key 1 in row 0 would be exp(1 - 0) / 1 = "
      "{:.4f}; for key 1 = 100 in float32: {}.\n\n",
      wrong::weight_without_mask(1.0f, 0.0f, 1.0f),
      wrong::weight_without_mask(100.0f, 0.0f, 1.0f));
}

inline double loss(const Inputs<double>& in) {
  const Index Nq = in.Q.rows();
  Matrix<double> O(Nq, in.Q.cols());
  Vector<double> m(Nq), l(Nq), LSE(Nq);
  saved_forward_cpu<double>(in.Q, in.K, in.V, O, m, l, LSE, {}, true);
  double sum = 0;
  for (Index i = 0; i < Nq; ++i) {
    if (l[i] == 0) continue;
    sum += O.row(i).dot(in.dO.row(i)) + LSE[i] * (*in.dLSE)[i];
  }
  return sum;
}

inline void compare_differences() {
  const Index Nq = 6, Nk = 5, d = 3;
  Inputs<double> in{random_matrix<double>(Nq, d, 0, 0), random_matrix<double>(Nk, d, 0, 1),
                    random_matrix<double>(Nk, d, 0, 2), random_matrix<double>(Nq, d, 0, 3),
                    random_matrix<double>(Nq, 1, 0, 4).col(0)};
  const auto g = gradients_cpu(in, {.tile = {2, 2}, .causal = true});
  const double h = 1e-5;
  print(
      "Is it the gradient? The loss sum(dO * O) + sum(dLSE * LSE) in float64, causal, Nq = {}, "
      "Nk = {}, d = {}: each\nelement moved by {:.0e} up and down. Largest difference from "
      "",
      Nq, Nk, d, h);
  double worst = 0;
  const auto compare = [&](Matrix<double>& X, const Matrix<double>& dX, const char* name) {
    double error = 0;
    for (Index e = 0; e < X.size(); ++e) {
      const double x = X.data()[e];
      X.data()[e] = x + h;
      const double up = loss(in);
      X.data()[e] = x - h;
      const double down = loss(in);
      X.data()[e] = x;
      error = std::max(error, std::abs((up - down) / (2 * h) - dX.data()[e]));
    }
    print("{}{}: {:.1e}", worst == 0 ? "" : ", ", name, error);
    worst = std::max(worst, error);
  };
  compare(in.Q, g.dQ, "dQ");
  compare(in.K, g.dK, "dK");
  compare(in.V, g.dV, "dV");
  print("\n\n");
  if (!(worst < 1e-8)) throw cli::CheckFailed("the gradients are not those of the loss");
}

inline void compare_traffic() {
  const std::int64_t N = 1024, d = 64;
  const Tiling tile{64, 64};
  print(
      "Which loop outside? Floats moved for N = {}, d = {}, tiles of 64 by 64, in units of N "
      "d. "
      "D and zeros included:\n\n"
      "  order                                 reads  writes  read+write  in all   products a "
      "pair\n",
      N, d);
  const auto line = [&](const char* name, const BackwardCounts& counts, int products) {
    const auto units = [&](std::int64_t count) { return count / (N * d); };
    print("  {:<36} {:>6} {:>7} {:>11} {:>7} {:>17}\n", name, units(counts.reads),
          units(counts.writes), units(counts.atomics), units(counts.matrices()), products);
  };
  line("two_passes: each loop outside once", predict_two_passes(N, N, d, tile), 7);
  line("atomic_dQ: keys outside, dQ travels", predict_atomic_dQ(N, N, d, tile), 5);
  line("queries outside, dK and dV travel", predict_query_outer(N, N, d, tile), 5);
  print("\n");
}

inline Inputs<float> random_inputs(Index Nq, Index Nk, Index d) {
  return {random_matrix<float>(Nq, d, 0, 0), random_matrix<float>(Nk, d, 0, 1),
          random_matrix<float>(Nk, d, 0, 2), random_matrix<float>(Nq, d, 0, 3),
          random_matrix<float>(Nq, 1, 0, 4).col(0)};
}

inline void compare_devices() {
  const Index Nq = 150, Nk = 100, d = 40;
  const Options options{.tile = {16, 32}, .causal = true};
  const Inputs<float> in = random_inputs(Nq, Nk, d);
  const Vector<double> dLSE = in.dLSE->cast<double>();
  const auto exact =
      reference_backward(in.Q.cast<double>(), in.K.cast<double>(), in.V.cast<double>(),
                         in.dO.cast<double>(), {.causal = true}, &dLSE);
  print(
      "A random head: Nq = {}, Nk = {}, d = {}, causal, with dLSE. Largest difference from "
      "naive gradients in float64,\nrelative to the largest where that is more than 1:\n"
      "                                  dQ       dK       dV\n",
      Nq, Nk, d);
  const auto report = [&](const std::string& name, const Gradients<float>& g) {
    const double errors[] = {relative_error(g.dQ, exact.dQ), relative_error(g.dK, exact.dK),
                             relative_error(g.dV, exact.dV)};
    print("  {:<26}  {:.1e}  {:.1e}  {:.1e}\n", name, errors[0], errors[1], errors[2]);
    for (const double e : errors) {
      if (!(e <= 1e-4)) throw cli::CheckFailed(name + " differs from the reference");
    }
  };
  report("CPU", gradients_cpu(in, options));
  if (!device_available()) {
    print("  CUDA kernels               not run: this build wants a GPU, and there is none\n");
    return;
  }
  const std::string kind = device_kind();
  std::optional<Traffic> two_passes, atomic_dQ;
  report("two_passes (" + kind + ")",
         gradients_cuda(in, options, BackwardForm::two_passes, &two_passes));
  report("atomic_dQ (" + kind + ")",
         gradients_cuda(in, options, BackwardForm::atomic_dQ, &atomic_dQ));
  if (!two_passes || !atomic_dQ) return print("\n");
  const auto check = [](const char* name, const Traffic& traffic, const BackwardCounts& p) {
    const auto reads = traffic.read_bytes / 4, writes = traffic.written_bytes / 4,
               atomics = traffic.atomic_bytes / 4;
    print("  {:<12} {:>8} read {:>8} written {:>8} added in place\n", name, reads, writes,
          atomics);
    if (reads != p.reads + p.statistics_reads || writes != p.writes + p.statistics_writes ||
        atomics != p.atomics)
      throw cli::CheckFailed(std::string(name) + " moves other than predicted");
  };
  print("\nFloats that the simulator counted, statistics included, exactly as predicted:\n");
  check("two_passes", *two_passes,
        predict_two_passes(Nq, Nk, d, options.tile, options.causal, true));
  check("atomic_dQ", *atomic_dQ,
        predict_atomic_dQ(Nq, Nk, d, options.tile, options.causal, true));
  print("\n");
}

// How many different dQ, bit for bit, ten runs give.
inline void compare_runs() {
  if (!device_available()) return;
  const Inputs<float> in = random_inputs(128, 128, 16);
  const auto different = [&](BackwardForm form, double* largest) {
    std::vector<Matrix<float>> seen;
    for (int run = 0; run < 10; ++run) {
      const Matrix<float> dQ = gradients_cuda(in, {.tile = {32, 16}}, form).dQ;
      bool known = false;
      for (const auto& old : seen) {
        known = known || (old.array() == dQ.array()).all();
        *largest = std::max(*largest, double{(old - dQ).cwiseAbs().maxCoeff()});
      }
      if (!known) seen.push_back(dQ);
    }
    return seen.size();
  };
  double by_passes = 0, by_atomics = 0;
  const auto passes = different(BackwardForm::two_passes, &by_passes),
             atomics = different(BackwardForm::atomic_dQ, &by_atomics);
  print(
      "Ten runs on the same input, {}: two_passes gave {} different dQ, atomic_dQ {}, up to "
      "{:.1e} apart.\nEight blocks add to each element in the order in which they come by, and "
      "in float32\n(2^24 + 1) + 1 = {:.0f}, but 2^24 + (1 + 1) = {:.0f}.\n",
      device_name(), passes, atomics, by_atomics, (0x1p24f + 1.0f) + 1.0f,
      0x1p24f + (1.0f + 1.0f));
  if (passes != 1) throw cli::CheckFailed("two_passes is not repeatable");
}

// All of it, in this order. Throws cli::CheckFailed where something that must agree does not.
inline void demonstrate() {
  narrate_one_row();
  show_hidden_scores();
  compare_differences();
  compare_traffic();
  compare_devices();
  compare_runs();
}

}  // namespace flash_steps

// Chapter 06, the executable. With --q --k --v --do, or with sizes for random input: a tool
// that writes dq.npy, dk.npy and dv.npy.
#include <cmath>
#include <optional>
#include <string>

#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/backward_tile.hpp"
#include "chapters/06_backward_recompute/backward_traffic.hpp"
#include "chapters/06_backward_recompute/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/relative_error.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

template <class T>
struct Inputs {
  Matrix<T> Q, K, V, dO;
  std::optional<Vector<T>> dLSE;
};

template <class T>
struct Gradients {
  Matrix<T> dQ, dK, dV;
  Index empty_rows = 0;
};

struct Options {
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
};

template <class T>
Gradients<T> gradients_cpu(const Inputs<T>& in, const Options& o) {
  const Index Nq = in.Q.rows(), Nk = in.K.rows(), d = in.Q.cols();
  Matrix<T> O(Nq, d);
  Vector<T> m(Nq), l(Nq), LSE(Nq), delta(Nq);
  saved_forward_cpu<T>(in.Q, in.K, in.V, O, m, l, LSE, o.tile, o.causal, o.scale);
  Gradients<T> g{Matrix<T>(Nq, d), Matrix<T>(Nk, d), Matrix<T>(Nk, d)};
  backward_recompute_cpu<T>(in.Q, in.K, in.V, O, m, l, in.dO, delta, g.dQ, g.dK, g.dV, o.tile,
                            o.causal, o.scale, in.dLSE ? &*in.dLSE : nullptr);
  g.empty_rows = (l.array() == T(0)).count();
  return g;
}

// Forward and backward on the device; with `traffic`, what the backward pass alone moved.
Gradients<float> gradients_cuda(const Inputs<float>& in, const Options& o, BackwardForm form,
                                std::optional<Traffic>* traffic = nullptr) {
  const Index Nq = in.Q.rows(), Nk = in.K.rows(), d = in.Q.cols();
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V),
             dO = to_device(in.dO);
  DeviceMatrix<float> O(Nq, d), dQ(Nq, d), dK(Nk, d), dV(Nk, d);
  DeviceArray<float> m(Nq), l(Nq), LSE(Nq), delta(Nq);
  saved_forward_cuda(Q, K, V, O, m, l, LSE, o.tile, o.causal, o.scale);
  std::optional<DeviceArray<float>> dLSE;
  if (in.dLSE) dLSE = to_device(*in.dLSE);
  reset_device_traffic();
  backward_recompute_cuda(Q, K, V, O, m, l, dO, delta, dQ, dK, dV, o.tile, o.causal, o.scale,
                          dLSE ? &*dLSE : nullptr, form);
  if (traffic) *traffic = device_traffic();
  return {to_host(dQ), to_host(dK), to_host(dV), (to_host(l).array() == 0).count()};
}

// ---- the demonstration

void narrate_one_row() {
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

void show_hidden_scores() {
  print(
      "The mask applies again. Causal, queries 1, 1, keys 0, 1: row 0 sees key 0 alone, so m = "
      "0, l = 1.\nWithout the mask the weight of key 1 in row 0 would be exp(1 - 0) / 1 = "
      "{:.4f}; for key 1 = 100 in float32: {}.\n\n",
      wrong::weight_without_mask(1.0f, 0.0f, 1.0f),
      wrong::weight_without_mask(100.0f, 0.0f, 1.0f));
}

double loss(const Inputs<double>& in) {
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

void compare_differences() {
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

void compare_traffic() {
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

Inputs<float> random_inputs(Index Nq, Index Nk, Index d) {
  return {random_matrix<float>(Nq, d, 0, 0), random_matrix<float>(Nk, d, 0, 1),
          random_matrix<float>(Nk, d, 0, 2), random_matrix<float>(Nq, d, 0, 3),
          random_matrix<float>(Nq, 1, 0, 4).col(0)};
}

void compare_devices() {
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
void compare_runs() {
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

// ---- the tool

struct Files {
  cli::QkvFiles head;
  std::optional<std::string> dO, dLSE;
};

// The upstream gradients: from files, or a random dO and no dLSE.
template <class T>
Inputs<T> complete(const cli::Head<T>& head, const Files& files, std::uint64_t seed) {
  Inputs<T> in{head.Q, head.K, head.V, {}, {}};
  const Index Nq = head.Q.rows(), d = head.Q.cols();
  if (!files.dO) in.dO = random_matrix<T>(Nq, d, seed, 3);
  if (!files.dO && !files.dLSE) return in;
  const cli::Input q = cli::read_input(*files.head.q, "--q");
  cli::Dimensions sizes;
  sizes.require(q, {"Nq", "d"});
  if (files.dO) {
    const cli::Input dO = cli::read_input(*files.dO, "--do");
    cli::require_same_dtype({&q, &dO});
    sizes.require(dO, {"Nq", "d"});
    in.dO = to_matrix<T>(dO.array, dO.file);
  }
  if (files.dLSE) {
    const cli::Input dLSE = cli::read_input(*files.dLSE, "--dlse");
    cli::require_same_dtype({&q, &dLSE});
    sizes.require(dLSE, {"Nq"});
    in.dLSE = to_vector<T>(dLSE.array, dLSE.file);
  }
  return in;
}

template <class T>
Gradients<T> gradients(const Inputs<T>& in, const std::string& device, BackwardForm form,
                       const Options& options, std::optional<Traffic>* traffic) {
  if (device == "cpu") return gradients_cpu(in, options);
  Inputs<float> rounded{in.Q.template cast<float>(),
                        in.K.template cast<float>(),
                        in.V.template cast<float>(),
                        in.dO.template cast<float>(),
                        {}};
  if (in.dLSE) rounded.dLSE = in.dLSE->template cast<float>();
  const Gradients<float> g = gradients_cuda(rounded, options, form, traffic);
  return {g.dQ.template cast<T>(), g.dK.template cast<T>(), g.dV.template cast<T>(),
          g.empty_rows};
}

template <class T>
void run_tool(const cli::Head<T>& head, const Files& files, const std::string& form,
              const cli::CommonOptions& common) {
  const Inputs<T> in = complete(head, files, common.seed);
  const Index Nq = in.Q.rows(), Nk = in.K.rows(), d = in.Q.cols();
  const Tiling tile =
      cli::chosen_tile(common, default_backward_tiling(d, cli::tile_bytes(common)));
  cli::OutputFiles written(common.out);

  std::optional<Traffic> traffic;
  const Gradients<T> g =
      gradients<T>(in, common.device,
                   form == "atomic_dq" ? BackwardForm::atomic_dQ : BackwardForm::two_passes,
                   {.tile = tile, .causal = common.causal, .scale = common.scale}, &traffic);
  written.write("dq.npy", to_npy(g.dQ));
  written.write("dk.npy", to_npy(g.dK));
  written.write("dv.npy", to_npy(g.dV));

  const bool on_cpu = common.device == "cpu";
  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, d);
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "06_backward_recompute", common);
    report.set("form", on_cpu ? cli::Value(nullptr) : cli::Value(form));
    report.set("nq", Nq);
    report.set("nk", Nk);
    report.set("d", d);
    cli::report_attention(report, tile, scale, common.causal);
    report.set("dlse", in.dLSE.has_value());
    report.set("empty_rows", g.empty_rows);
    const auto floats = [&](std::int64_t Traffic::*bytes) {
      return traffic ? cli::Value((*traffic).*bytes / 4) : cli::Value(nullptr);
    };
    report.set({"floats", "read"}, floats(&Traffic::read_bytes));
    report.set({"floats", "written"}, floats(&Traffic::written_bytes));
    report.set({"floats", "added_in_place"}, floats(&Traffic::atomic_bytes));
    report.set("files", written.names());
    report.print();
    return;
  }
  print(
      "backward on {} ({}{}{}): Q, dO [{}, {}], K and V [{}, {}], Br = {}, Bc = {}, scale = "
      "{:.6g}, {}, {}\n"
      "rows without a visible key: {}\n",
      common.device, device, on_cpu ? "" : ", ", on_cpu ? "" : form, Nq, d, Nk, d, tile.Br,
      tile.Bc, scale, common.causal ? "causal" : "no mask", in.dLSE ? "with dLSE" : "no dLSE",
      g.empty_rows);
  written.print();
}

void run(const cli::Arguments& arguments) {
  Files files;
  cli::CommonOptions common;
  std::string form = "two_passes";
  cli::Options options(
      "06_backward_recompute",
      "The gradients of attention for one head: the weights are rebuilt tile by tile from the "
      "saved m and l.");
  cli::add_head(options, files.head, common);
  options.add("--do", files.dO, "gradient for the output, .npy [Nq, d]; random if not given");
  options.add("--dlse", files.dLSE, "gradient for LSE, .npy [Nq]; 0 if not given");
  options.exclusive({"--do", "--dlse"}, {"--n", "--nk", "--d"});
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  options.add_choice("--form", form, {"two_passes", "atomic_dq"},
                     "which loop is outside in the kernels (not for cpu)");
  cli::add_output(options, common);
  options.example(
      "06_backward_recompute --q q.npy --k k.npy --v v.npy --do do.npy --causal --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    narrate_one_row();
    show_hidden_scores();
    compare_differences();
    compare_traffic();
    compare_devices();
    compare_runs();
    return;
  }
  if ((files.dO || files.dLSE) && !files.head.q) {
    throw cli::UsageError("--do and --dlse go with --q, --k and --v");
  }
  if (options.given("--form") && common.device == "cpu") {
    throw cli::UsageError("--form chooses between kernels: give --device sim or cuda, too");
  }
  use_device(common.device, common.thread_order, common.seed);
  cli::with_head(files.head, common,
                 [&](const auto& head) { run_tool(head, files, form, common); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

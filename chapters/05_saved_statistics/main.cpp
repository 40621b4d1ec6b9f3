// Chapter 05, the executable. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy, m.npy, l.npy and lse.npy.
#include <cmath>
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/05_saved_statistics/weight.hpp"
#include "chapters/05_saved_statistics/wrong_versions.hpp"
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

// ---- the demonstration

template <class T>
struct Saved {
  Matrix<T> O;
  Vector<T> m, l, LSE;
};

template <class T>
Saved<T> forward_cpu(const Matrix<T>& Q, const Matrix<T>& K, const Matrix<T>& V,
                     Tiling tile = {}, bool causal = false, std::optional<double> scale = {}) {
  const Index Nq = Q.rows();
  Saved<T> saved{Matrix<T>(Nq, Q.cols()), Vector<T>(Nq), Vector<T>(Nq), Vector<T>(Nq)};
  saved_forward_cpu<T>(Q, K, V, saved.O, saved.m, saved.l, saved.LSE, tile, causal, scale);
  return saved;
}

// One query of 1 against keys that are their own scores; all values 0.
Saved<float> forward_scores(const Vector<float>& scores) {
  return forward_cpu<float>(Matrix<float>::Ones(1, 1), scores,
                            Matrix<float>::Zero(scores.size(), 1), {.Br = 1, .Bc = 2}, false,
                            1.0);
}

void compare_costs() {
  print(
      "What the backward pass needs of the softmax, in bytes a head, float32:\n\n"
      "          N     P itself     m and l      LSE\n");
  for (const Index N : {1024, 16384, 131072}) {
    print("  {:>9} {:>12} {:>11} {:>8}\n", N, 4 * N * N, 8 * N, 4 * N);
  }
  print("\n");
}

void narrate_one_row() {
  Vector<float> scores(4);
  scores << 1, 3, 2, 4;
  const Saved<float> saved = forward_scores(scores);
  const float m = saved.m[0], l = saved.l[0], LSE = saved.LSE[0];
  print(
      "The row of chapter 03 again, scores 1, 3, 2, 4. The walk ends with m = {:.0f}, "
      "l = {:.4f},\nso LSE = m + ln l = {:.4f}. Any weight comes back from its score:\n\n"
      "  score    exp(s - m) / l    exp(s - LSE)\n",
      m, l, LSE);
  for (const float s : scores) {
    print("  {:>5.0f} {:>17.4f} {:>15.4f}\n", s, weight_from_m_l(s, m, l),
          weight_from_lse(s, LSE));
  }
  Vector<float> zero(1), five(1);
  zero << 0;
  five << 5;
  print(
      "\nl alone says nothing: one key of score 0 gives l = {:.0f}, one of score 5 gives "
      "l = {:.0f}.\nA row that sees no key has m = {}, l = {}, LSE = {}.\n\n",
      forward_scores(zero).l[0], forward_scores(five).l[0], forward_scores({}).m[0],
      forward_scores({}).l[0], forward_scores({}).LSE[0]);
}

// The largest relative errors of the weights rebuilt in float32, over random rows of 64 scores
// around `level`, against the float64 softmax of the very same scores.
struct Errors {
  double m_l = 0, lse = 0;
};
Errors weight_errors(float level) {
  Errors errors;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Vector<float> scores =
        random_matrix<float>(64, 1, seed, 0, 2.0).col(0).array() + level;
    const Saved<float> saved = forward_scores(scores);
    const Vector<double> P = (scores.cast<double>().array() - double{saved.m[0]}).exp();
    const double sum = P.sum();
    for (Index j = 0; j < scores.size(); ++j) {
      const auto relative = [&](float weight) { return std::abs(weight / (P[j] / sum) - 1); };
      errors.m_l =
          std::max(errors.m_l, relative(weight_from_m_l(scores[j], saved.m[0], saved.l[0])));
      errors.lse = std::max(errors.lse, relative(weight_from_lse(scores[j], saved.LSE[0])));
    }
  }
  return errors;
}

void compare_precision() {
  print(
      "One number or two? float32 holds LSE only to half the distance of its neighbours, and "
      "that is the\nrelative error of every weight. Largest errors over 200 rows of 64 "
      "scores:\n\n"
      "  scores near    half the distance    from m and l    from LSE\n");
  for (const float level : {1.0f, 10.0f, 100.0f, 300.0f, 1000.0f, 10000.0f}) {
    const Errors errors = weight_errors(level);
    const double half = (std::nextafter(level, 2 * level) - level) / 2;
    print("  {:>11.0f} {:>20.1e} {:>15.1e} {:>11.1e}\n", level, half, errors.m_l, errors.lse);
  }
  Vector<float> equal(2);
  equal << 16777216, 16777216;  // 2^24
  const Saved<float> saved = forward_scores(equal);
  const float by_m_l = weight_from_m_l(equal[0], saved.m[0], saved.l[0]),
              by_lse = weight_from_lse(equal[0], saved.LSE[0]);
  print(
      "\nTwo equal scores of 2^24: ln 2 is lost in LSE = {:.0f}. From m and l P = {}, {}; from "
      "LSE P = {}, {}.\n\n",
      saved.LSE[0], by_m_l, by_m_l, by_lse, by_lse);
  if (!(by_m_l == 0.5f)) throw cli::CheckFailed("m and l do not give back equal weights");
}

void compare_types() {
  print(
      "m, l and O are sums over all keys: float32 even where Q, K, V are 16 bits wide. 4096 "
      "equal scores,\nvalue 1 for the first half of the keys and 0 for the rest, so l = 4096 "
      "and O = 0.5:\n\n"
      "  m, l, O in       l       O\n");
  std::vector<float> scores(4096, 0.0f), values(4096, 0.0f);
  std::fill_n(values.begin(), 2048, 1.0f);
  const auto show = [](const char* type, const wrong::Row& row) {
    print("  {:<8} {:>9} {:>7}\n", type, row.l, row.O);
  };
  show("float32", wrong::accumulate_in<float>(scores, values));
  show("float16", wrong::accumulate_in<Eigen::half>(scores, values));
  show("bfloat16", wrong::accumulate_in<Eigen::bfloat16>(scores, values));
  print("\nThe sum stops where adding 1 rounds to nothing: at 2048 and at 256.\n\n");
}

void compare_devices() {
  const Index Nq = 150, Nk = 100, d = 40;
  const Tiling tile{.Br = 16, .Bc = 32};
  const auto [Q, K, V] = random_head(Nq, Nk, d, 0);
  const auto exact = reference_attention(Q.cast<double>(), K.cast<double>(), V.cast<double>(),
                                         {.causal = true});
  print(
      "A random head: Nq = {}, Nk = {}, d = {}, causal, so {} rows see no key. Largest "
      "difference from\nnaive attention in float64, relative to the largest value where that "
      "is more than 1:\n"
      "                              O        m        l      LSE\n",
      Nq, Nk, d, Nq - Nk);
  const auto report = [&](const std::string& name, const Saved<float>& saved) {
    const double errors[] = {relative_error(saved.O, exact.O), relative_error(saved.m, exact.m),
                             relative_error(saved.l, exact.l),
                             relative_error(saved.LSE, exact.LSE)};
    print("  {:<22}", name);
    bool right = true;
    for (const double e : errors) {
      print("  {:.1e}", e);
      right = right && e <= 1e-5;
    }
    print("\n");
    if (!right) throw cli::CheckFailed(name + " differs from the reference");
  };
  report("CPU", forward_cpu<float>(Q, K, V, tile, true));
  if (!device_available()) {
    print("  CUDA kernel            not run: this build wants a GPU, and there is none\n");
    return;
  }
  DeviceMatrix<float> O(Nq, d);
  DeviceArray<float> m(Nq), l(Nq), LSE(Nq);
  saved_forward_cuda(to_device(Q), to_device(K), to_device(V), O, m, l, LSE, tile, true);
  report("CUDA kernel (" + std::string(device_kind()) + ")",
         {to_host(O), to_host(m), to_host(l), to_host(LSE)});
}

// ---- the tool

template <class T>
Saved<T> forward(const Head<T>& head, const cli::CommonOptions& common, Tiling tile) {
  if (common.device == "cpu") {
    return forward_cpu<T>(head.Q, head.K, head.V, tile, common.causal, common.scale);
  }
  const Head<float> in = head.template cast<float>();
  const Index Nq = in.Q.rows();
  DeviceMatrix<float> O(Nq, in.Q.cols());
  DeviceArray<float> m(Nq), l(Nq), LSE(Nq);
  saved_forward_cuda(to_device(in.Q), to_device(in.K), to_device(in.V), O, m, l, LSE, tile,
                     common.causal, common.scale);
  return {to_host(O).template cast<T>(), to_host(m).template cast<T>(),
          to_host(l).template cast<T>(), to_host(LSE).template cast<T>()};
}

template <class T>
void run_tool(const Head<T>& head, const cli::CommonOptions& common) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  const Tiling tile = cli::chosen_tile(common, default_tiling(d, cli::tile_bytes(common)));
  cli::OutputFiles files(common.out);

  const Saved<T> saved = forward(head, common, tile);
  files.write("o.npy", to_npy(saved.O));
  files.write("m.npy", to_npy(saved.m));
  files.write("l.npy", to_npy(saved.l));
  files.write("lse.npy", to_npy(saved.LSE));
  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, d);
  const Index empty_rows = (saved.l.array() == T(0)).count();
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "05_saved_statistics", common);
    report.set("nq", Nq);
    report.set("nk", Nk);
    report.set("d", d);
    cli::report_attention(report, tile, scale, common.causal);
    report.set("empty_rows", empty_rows);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "saved forward on {} ({}): Q [{}, {}], K and V [{}, {}], Br = {}, Bc = {}, scale = "
      "{:.6g}, {}\n"
      "rows without a visible key: {}\n",
      common.device, device, Nq, d, Nk, d, tile.Br, tile.Bc, scale,
      common.causal ? "causal" : "no mask", empty_rows);
  files.print();
}

void run(const cli::Arguments& arguments) {
  cli::QkvFiles files;
  cli::CommonOptions common;
  cli::Options options(
      "05_saved_statistics",
      "FlashAttention's forward pass for one head that keeps m, l and LSE for the backward "
      "pass.");
  cli::add_head(options, files, common);
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example("05_saved_statistics --q q.npy --k k.npy --v v.npy --causal --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    compare_costs();
    narrate_one_row();
    compare_precision();
    compare_types();
    compare_devices();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  cli::with_head(files, common, [&](const auto& head) { run_tool(head, common); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

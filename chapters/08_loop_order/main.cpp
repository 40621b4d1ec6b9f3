// Chapter 08, the executable. With --q --k --v, or with sizes for random input: a tool that
// writes o.npy and lse.npy, and says what the chosen order moved.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/q_outer.hpp"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "chapters/08_loop_order/tell_apart.hpp"
#include "chapters/08_loop_order/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/relative_error.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

// ---- attention in either order, on either device

// `when` plays no part in q_outer.
struct Job {
  LoopOrder order = LoopOrder::q_outer;
  Normalise when = Normalise::every_tile;
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
};

template <class T>
struct Attention {
  Matrix<T> O;
  Vector<T> LSE;
  std::optional<Counts> counts;  // nothing on a GPU, which does not count
};

template <class T>
Attention<T> attend_on_cpu(const cli::Head<T>& head, const Job& job) {
  const auto& [Q, K, V] = head;
  Attention<T> a{Matrix<T>(Q.rows(), Q.cols()), Vector<T>(Q.rows()), {}};
  if (job.order == LoopOrder::q_outer) {
    a.counts = q_outer_cpu<T>(Q, K, V, a.O, a.LSE, job.tile, job.causal, job.scale);
  } else {
    Vector<T> m(Q.rows()), l(Q.rows());
    a.counts = kv_outer_cpu<T>(Q, K, V, a.O, m, l, job.tile, job.causal, job.scale, job.when);
    a.LSE = m.array() + l.array().log();
  }
  return a;
}

// Runs the kernels of one order, and says what they moved. Setting O, m, l to their start
// values is not counted.
std::optional<Traffic> launch_order(const cli::Head<float>& head, const Job& job,
                                    Attention<float>& a) {
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(Q.rows(), Q.cols());
  if (job.order == LoopOrder::q_outer) {
    DeviceArray<float> LSE(Q.rows());
    reset_device_traffic();
    q_outer_cuda(Q, K, V, O, LSE, job.tile, job.causal, job.scale);
    a.LSE = to_host(LSE);
  } else {
    DeviceArray<float> m(Q.rows()), l(Q.rows());
    DeviceArray<unsigned> turns(1 + ceil_div(Q.rows(), job.tile.Br));
    kv_outer_start_cuda(O, m, l, turns);
    reset_device_traffic();
    kv_outer_walk_cuda(Q, K, V, O, m, l, turns, job.tile, job.causal, job.scale, job.when);
    a.LSE = to_host(m).array() + to_host(l).array().log();
  }
  a.O = to_host(O);
  return device_traffic();
}

Attention<float> attend_on_device(const cli::Head<float>& head, const Job& job) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  Attention<float> a, ignored;
  const auto traffic = launch_order(head, job, a);
  const Index other_d = d == 1 ? 2 : 1;
  const bool other_fits =
      tile_shared_bytes(job.tile, other_d) + 16 <= device_limits().shared_bytes_per_block;
  if (!traffic || !other_fits) return a;
  const cli::Head<float> other{Matrix<float>::Zero(Nq, other_d),
                               Matrix<float>::Zero(Nk, other_d),
                               Matrix<float>::Zero(Nk, other_d)};
  a.counts = tell_apart(*traffic, d, *launch_order(other, job, ignored), other_d);
  return a;
}

void check_counts(const std::string& what, const std::optional<Counts>& counted,
                  const Counts& predicted) {
  if (!counted || *counted == predicted) return;
  throw cli::CheckFailed(what + " moves " + std::to_string(counted->total()) +
                         " elements, but the formula says " +
                         std::to_string(predicted.total()));
}

// ---- the demonstration

// kv_outer's O, m and l in memory after so many keys: what it ends with if there are no others.
void narrate_one_row() {
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

void compare_traffic() {
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

void compare_parallelism() {
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

void show_wrong_versions() {
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

void compare_devices() {
  const Index Nq = 150, Nk = 100, d = 40;
  const cli::Head<float> head = cli::random_head(Nq, Nk, d, 0);
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

// ---- the tool

struct ToolOptions : cli::CommonOptions {
  std::string order = "q_outer";
  std::optional<std::string> normalise;
};

template <class T>
Attention<T> attend(const cli::Head<T>& head, const Job& job, const std::string& device) {
  if (device == "cpu") return attend_on_cpu<T>(head, job);
  const Attention<float> a = attend_on_device(head.template cast<float>(), job);
  return {a.O.template cast<T>(), a.LSE.template cast<T>(), a.counts};
}

// What was moved, and what the formula says; null where nobody counted.
void report_counts(cli::Report& report, const std::optional<Counts>& counted,
                   const Counts& predicted) {
  const auto set = [&](const std::string& name, std::int64_t Counts::*field) {
    report.set(name, counted ? std::optional(*counted.*field) : std::nullopt);
    report.set("predicted_" + name, predicted.*field);
  };
  set("reads", &Counts::reads);
  set("writes", &Counts::writes);
  set("statistics_reads", &Counts::statistics_reads);
  set("statistics_writes", &Counts::statistics_writes);
}

template <class T>
void run_tool(const cli::Head<T>& head, const ToolOptions& tool) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  const Job job{.order = tool.order == "q_outer" ? LoopOrder::q_outer : LoopOrder::kv_outer,
                .when = tool.normalise == "once" ? Normalise::once : Normalise::every_tile,
                .tile = cli::chosen_tile(tool, default_tiling(d, cli::tile_bytes(tool))),
                .causal = tool.causal,
                .scale = tool.scale};
  const Counts predicted = predict_loop_order(job.order, Nq, Nk, d, job.tile, job.causal);
  cli::OutputFiles files(tool.out);

  const Attention<T> a = attend(head, job, tool.device);
  check_counts(tool.order + " on " + tool.device, a.counts, predicted);
  files.write("o.npy", to_npy(a.O));
  files.write("lse.npy", to_npy(a.LSE));
  const std::string device = cli::computing_device(tool);
  const std::string when =
      job.order == LoopOrder::q_outer ? "once" : tool.normalise.value_or("every_tile");
  const double scale = resolve_scale<T>(job.scale, d);
  if (tool.json) {
    cli::Report report;
    cli::report_start(report, "08_loop_order", tool);
    report.set("order", tool.order);
    report.set("normalise", when);
    report.set("nq", Nq);
    report.set("nk", Nk);
    report.set("d", d);
    cli::report_attention(report, job.tile, scale, job.causal);
    report_counts(report, a.counts, predicted);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "{} on {} ({}), normalised {}: Q [{}, {}], K and V [{}, {}], Br = {}, Bc = {}, scale = "
      "{:.6g}, {}\n"
      "elements read {}, written {}; statistics read {}, written {}\n{}\n",
      tool.order, tool.device, device, when == "once" ? "once" : "at every tile", Nq, d, Nk, d,
      job.tile.Br, job.tile.Bc, scale, job.causal ? "causal" : "no mask", predicted.reads,
      predicted.writes, predicted.statistics_reads, predicted.statistics_writes,
      a.counts ? "Counted while it ran; the formula agrees." : "As predicted; nobody counted.");
  files.print();
}

void run(const cli::Arguments& arguments) {
  cli::QkvFiles files;
  ToolOptions tool;
  cli::Options options("08_loop_order",
                       "Attention of one head with either loop outside: the same result, and "
                       "what each moves.");
  cli::add_head(options, files, tool);
  cli::add_scale(options, tool);
  cli::add_causal(options, tool);
  cli::add_tiles(options, tool);
  options.group("Order");
  options.add_choice("--order", tool.order, {"q_outer", "kv_outer"},
                     "which loop is the outer one");
  options.add_choice("--normalise", tool.normalise, {"every_tile", "once"},
                     "when kv_outer divides by l; every_tile if not given");
  cli::add_device(options, tool);
  cli::add_output(options, tool);
  options.example("08_loop_order --n 1024 --order kv_outer --br 64 --bc 128 --json");
  options.parse(arguments);

  if (!options.any_given()) {
    narrate_one_row();
    compare_traffic();
    compare_parallelism();
    show_wrong_versions();
    compare_devices();
    return;
  }
  if (tool.normalise && tool.order == "q_outer") {
    throw cli::UsageError("--normalise is for --order kv_outer; q_outer normalises once");
  }
  use_device(tool.device, tool.thread_order, tool.seed);
  cli::with_head(files, tool, [&](const auto& head) { run_tool(head, tool); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

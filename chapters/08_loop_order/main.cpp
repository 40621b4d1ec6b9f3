// Chapter 08, the executable. With --q --k --v, or with sizes for random input: a tool that
// writes o.npy and lse.npy, and says what the chosen order moved.
#include <cstdint>
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/08_loop_order/attend.hpp"
#include "chapters/08_loop_order/demonstration.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct ToolOptions : cli::CommonOptions {
  std::string order = "q_outer";
  std::optional<std::string> normalise;
};

template <class T>
Attention<T> attend(const Head<T>& head, const Job& job, const std::string& device) {
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
void run_tool(const Head<T>& head, const ToolOptions& tool) {
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

  if (!options.any_given()) return demonstrate();
  if (tool.normalise && tool.order == "q_outer") {
    throw cli::UsageError("--normalise is for --order kv_outer; q_outer normalises once");
  }
  use_device(tool.device, tool.thread_order, tool.seed);
  cli::with_head(files, tool, [&](const auto& head) { run_tool(head, tool); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

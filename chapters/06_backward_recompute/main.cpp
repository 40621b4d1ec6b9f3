// Chapter 06, the executable. With --q --k --v --do, or with sizes for random input: a tool
// that writes dq.npy, dk.npy and dv.npy.
#include <cstdint>
#include <optional>
#include <string>

#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "chapters/06_backward_recompute/demonstration.hpp"
#include "chapters/06_backward_recompute/gradients.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Files {
  cli::QkvFiles head;
  std::optional<std::string> dO, dLSE;
};

// The upstream gradients: from files, or a random dO and no dLSE.
template <class T>
Inputs<T> complete(const Head<T>& head, const Files& files, std::uint64_t seed) {
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
void run_tool(const Head<T>& head, const Files& files, const std::string& form,
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

  if (!options.any_given()) return demonstrate();
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

// Chapter 07, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy and lse.npy, and with --do the
// gradients.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/attend.hpp"
#include "chapters/07_cuda_kernel/demonstration.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Request {
  cli::CommonOptions common;
  cli::QkvFiles files;
  std::optional<std::string> dO, dLSE;
  std::optional<std::int64_t> rung;
  std::string dtype = "f32";
};

// Reads a file that goes with the batch, of this shape and of T's type.
template <class T>
NpyArray read_beside(const std::string& path, const std::string& option,
                     std::vector<std::int64_t> shape, std::size_t dropped) {
  cli::Input input = cli::read_input(path, option);
  if (dtype_name(input.array) != std::string(dtype_name<T>())) {
    throw cli::UsageError(input.file + " is " + dtype_name(input.array) + ", but q is " +
                          dtype_name<T>());
  }
  shape.erase(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dropped));
  if (input.array.shape != shape) {
    throw cli::UsageError(input.file + " must be " + shape_text(shape) + ", found " +
                          shape_text(input.array.shape));
  }
  return input.array;
}

template <class T>
struct OutputGradient {
  HeadsArray<T> dO;
  std::optional<Matrix<T>> dLSE;
};

template <class T>
std::optional<OutputGradient<T>> read_output_gradient(const Request& request,
                                                      const Batch<T>& in) {
  if (!request.dO) return std::nullopt;
  const HeadsArray<T>& Q = in.Q;
  const std::size_t dropped = in.rank == 2 ? 2 : 0;
  OutputGradient<T> result{HeadsArray<T>(Q.B(), Q.H(), Q.N(), Q.d()), {}};
  const NpyArray dO =
      read_beside<T>(*request.dO, "--do", {Q.B(), Q.H(), Q.N(), Q.d()}, dropped);
  result.dO.elements() = std::get<std::vector<T>>(dO.data);
  if (request.dLSE) {
    const NpyArray dLSE =
        read_beside<T>(*request.dLSE, "--dlse", {Q.B(), Q.H(), Q.N()}, dropped);
    result.dLSE = Eigen::Map<const Matrix<T>>(std::get<std::vector<T>>(dLSE.data).data(),
                                              Q.B() * Q.H(), Q.N());
  }
  return result;
}

template <class T>
Forward<T> forward(const Batch<T>& in, const Request& request, const Settings& settings) {
  if (request.common.device == "cpu") return forward_cpu(in, settings);
  const Forward<float> out = forward_device(in.template cast<float>(), settings);
  return {out.O.cast<T>(), out.LSE.cast<T>()};
}

template <class T>
Gradients<T> backward(const Batch<T>& in, const Forward<T>& saved,
                      const OutputGradient<T>& gradient, const Request& request,
                      const Settings& settings) {
  if (request.common.device == "cpu") {
    return backward_cpu<T>(in, saved, gradient.dO, gradient.dLSE ? &*gradient.dLSE : nullptr,
                           settings);
  }
  const Matrix<float> dLSE =
      gradient.dLSE ? gradient.dLSE->template cast<float>().eval() : Matrix<float>();
  const Gradients<float> out = backward_device(
      in.template cast<float>(),
      {saved.O.template cast<float>(), saved.LSE.template cast<float>()},
      gradient.dO.template cast<float>(), gradient.dLSE ? &dLSE : nullptr, settings);
  return {out.dQ.cast<T>(), out.dK.cast<T>(), out.dV.cast<T>()};
}

Settings settings_for(const Request& request, std::int64_t d) {
  const cli::CommonOptions& common = request.common;
  const std::int64_t bytes = cli::tile_bytes(common);
  return {.tile = cli::chosen_tile(common, default_tiling(d, bytes)),
          .backward_tile = cli::chosen_tile(common, default_backward_tiling(d, bytes)),
          .causal = common.causal,
          .scale = common.scale,
          .rung = request.rung};
}

template <class T>
void report(const Request& request, const Batch<T>& in, const Settings& settings,
            Index empty_rows, const cli::OutputFiles& files) {
  const cli::CommonOptions& common = request.common;
  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, in.Q.d());
  if (!common.json) {
    const std::string kernel = settings.rung ? "rung " + std::to_string(*settings.rung) + ", " +
                                                   rung_name(*settings.rung)
                                             : "Br = " + std::to_string(settings.tile.Br) +
                                                   ", Bc = " + std::to_string(settings.tile.Bc);
    print(
        "attention on {} ({}): Q [{}, {}, {}, {}], K and V [{}, {}, {}, {}], {}, scale = "
        "{:.6g}, {}\nrows without a visible key: {}\n",
        common.device, device, in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d(), in.K.B(), in.K.H(),
        in.K.N(), in.K.d(), kernel, scale, common.causal ? "causal" : "no mask", empty_rows);
    files.print();
    return;
  }
  cli::Report report;
  cli::report_start(report, "07_cuda_kernel", common);
  report.set("dtype", request.dtype);
  report.set("batch", in.Q.B());
  report.set("heads", in.Q.H());
  report.set("kv_heads", in.K.H());
  report.set("nq", in.Q.N());
  report.set("nk", in.K.N());
  report.set("d", in.Q.d());
  report.set("rung", settings.rung);
  report.set("br", settings.rung ? std::optional<std::int64_t>() : settings.tile.Br);
  report.set("bc", settings.rung ? std::optional<std::int64_t>() : settings.tile.Bc);
  report.set("scale", scale);
  report.set("causal", common.causal);
  report.set("empty_rows", empty_rows);
  report.set("files", files.names());
  report.print();
}

template <class T>
void run_tool(const Batch<T>& in, const Request& request) {
  const Settings settings = settings_for(request, in.Q.d());
  const auto gradient = read_output_gradient(request, in);
  cli::OutputFiles files(request.common.out);

  const Forward<T> saved = forward(in, request, settings);
  files.write("o.npy", cli::heads_to_npy(saved.O, in.rank));
  files.write("lse.npy", cli::rows_to_npy(saved.LSE, in.Q.B(), in.Q.H(), in.rank));
  if (gradient) {
    const Gradients<T> gradients = backward(in, saved, *gradient, request, settings);
    files.write("dq.npy", cli::heads_to_npy(gradients.dQ, in.rank));
    files.write("dk.npy", cli::heads_to_npy(gradients.dK, in.rank));
    files.write("dv.npy", cli::heads_to_npy(gradients.dV, in.rank));
  }
  report(request, in, settings, (saved.LSE.array() == -kInf<T>).count(), files);
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::Options options("07_cuda_kernel",
                       "FlashAttention for a batch of heads, forward and backward, and a "
                       "ladder of faster forward kernels.");
  cli::add_batch_input(options, request.files, request.common);
  options.add("--do", request.dO, "gradient of a loss for the output, .npy of q's shape");
  options.add("--dlse", request.dLSE, "and for LSE, .npy [B, H, Nq] or [Nq]; 0 if not given");
  cli::add_scale(options, request.common);
  cli::add_causal(options, request.common);
  cli::add_tiles(options, request.common);
  cli::add_device(options, request.common);
  options.add("--rung", request.rung, "forward by this rung of the ladder", {1, kRungs});
  options.add_choice("--dtype", request.dtype, {"f32"}, "type of the arithmetic on the device");
  cli::add_output(options, request.common);
  options.exclusive({"--rung"}, {"--br", "--bc"});
  options.example("07_cuda_kernel --q q.npy --k k.npy --v v.npy --causal --out results");
  options.example("07_cuda_kernel --device sim --rung 3 --heads 4 --kv-heads 2 --n 200 --json");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  if (request.dLSE && !request.dO) throw cli::UsageError("--dlse goes with --do");
  if (request.rung && request.common.device == "cpu") {
    throw cli::UsageError("--rung chooses a kernel: it needs --device sim or --device cuda");
  }
  use_device(request.common.device, request.common.thread_order, request.common.seed);
  cli::with_batch(request.files, request.common,
                  [&](const auto& batch) { run_tool(batch, request); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

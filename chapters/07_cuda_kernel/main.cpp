// Chapter 07, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy and lse.npy, and with --do the
// gradients.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "chapters/07_cuda_kernel/wrong_versions.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/relative_error.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

template <class T>
struct Forward {
  HeadsArray<T> O;
  Matrix<T> LSE;
};

template <class T>
struct Gradients {
  HeadsArray<T> dQ, dK, dV;
};

struct Settings {
  Tiling tile = {}, backward_tile = {};
  bool causal = false;
  std::optional<double> scale = {};
  std::optional<std::int64_t> rung = {};
};

template <class T>
Forward<T> forward_cpu(const cli::Batch<T>& in, const Settings& settings) {
  const HeadsArray<T>& Q = in.Q;
  Forward<T> out{HeadsArray<T>(Q.B(), Q.H(), Q.N(), Q.d()), Matrix<T>(Q.B() * Q.H(), Q.N())};
  batched_forward_cpu<T>(Q.view(), in.K.view(), in.V.view(), out.O.view(), out.LSE,
                         settings.tile, settings.causal, settings.scale);
  return out;
}

template <class T>
Gradients<T> backward_cpu(const cli::Batch<T>& in, const Forward<T>& saved,
                          const HeadsArray<T>& dO, const Matrix<T>* dLSE,
                          const Settings& settings) {
  Gradients<T> out{in.Q, in.K, in.V};  // of their shapes
  Matrix<T> delta(saved.LSE.rows(), saved.LSE.cols());
  batched_backward_cpu<T>(in.Q.view(), in.K.view(), in.V.view(), saved.O.view(), saved.LSE,
                          dO.view(), delta, out.dQ.view(), out.dK.view(), out.dV.view(),
                          settings.backward_tile, settings.causal, settings.scale, dLSE);
  return out;
}

Forward<float> forward_device(const cli::Batch<float>& in, const Settings& settings) {
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(Q.layout());
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  if (settings.rung) {
    forward_rung(*settings.rung, Q, K, V, O, LSE, settings.causal, settings.scale);
  } else {
    batched_forward_cuda(Q, K, V, O, LSE, settings.tile, settings.causal, settings.scale);
  }
  return {to_host(O), to_host(LSE)};
}

Gradients<float> backward_device(const cli::Batch<float>& in, const Forward<float>& saved,
                                 const HeadsArray<float>& dO, const Matrix<float>* dLSE,
                                 const Settings& settings) {
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  const auto device_dLSE = dLSE ? to_device(*dLSE) : DeviceMatrix<float>();
  DeviceMatrix<float> delta(saved.LSE.rows(), saved.LSE.cols());
  DeviceHeads<float> dQ(Q.layout()), dK(K.layout()), dV(V.layout());
  batched_backward_cuda(Q, K, V, to_device(saved.O), to_device(saved.LSE), to_device(dO), delta,
                        dQ, dK, dV, settings.backward_tile, settings.causal, settings.scale,
                        dLSE ? &device_dLSE : nullptr);
  return {to_host(dQ), to_host(dK), to_host(dV)};
}

// ---- the demonstration

void narrate_strides() {
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

void narrate_grid() {
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
void narrate_group() {
  cli::Batch<double> in{HeadsArray<double>(1, 2, 1, 1), HeadsArray<double>(1, 1, 2, 1),
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
    cli::Batch<double> one{HeadsArray<double>(1, 1, 1, 1, q), in.K, in.V};
    const HeadsArray<double> dO1(1, 1, 1, 1, 1.0);
    const auto g =
        backward_cpu<double>(one, forward_cpu(one, settings), dO1, nullptr, settings);
    print("  head {:.0f} alone   {:>8.4f} {:>7.4f}   {:>8.4f} {:>7.4f}\n", q - 1,
          g.dK.elements()[0], g.dK.elements()[1], g.dV.elements()[0], g.dV.elements()[1]);
  }
  print("  the group      {:>8.4f} {:>7.4f}   {:>8.4f} {:>7.4f}\n\n", both.dK.elements()[0],
        both.dK.elements()[1], both.dV.elements()[0], both.dV.elements()[1]);
}

void compare_devices() {
  const std::int64_t B = 2, H = 4, Hkv = 2, Nq = 150, Nk = 100, d = 40;
  const auto in = cli::random_batch<float>(B, H, Hkv, Nq, Nk, d, 0);
  const auto dO = random_heads<float>(B, H, Nq, d, 1, 0);
  Settings settings{.tile = {32, 32}, .backward_tile = {32, 32}, .causal = true};
  const cli::Batch<double> wide = in.cast<double>();
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

// ---- the tool

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
                                                      const cli::Batch<T>& in) {
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
Forward<T> forward(const cli::Batch<T>& in, const Request& request, const Settings& settings) {
  if (request.common.device == "cpu") return forward_cpu(in, settings);
  const Forward<float> out = forward_device(in.template cast<float>(), settings);
  return {out.O.cast<T>(), out.LSE.cast<T>()};
}

template <class T>
Gradients<T> backward(const cli::Batch<T>& in, const Forward<T>& saved,
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
void report(const Request& request, const cli::Batch<T>& in, const Settings& settings,
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
void run_tool(const cli::Batch<T>& in, const Request& request) {
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

  if (!options.any_given()) {
    narrate_strides();
    narrate_grid();
    narrate_group();
    compare_devices();
    return;
  }
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

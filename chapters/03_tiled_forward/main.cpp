// Chapter 03, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy.
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

// ---- the demonstration
// -------------------------------------------------------------------------

// Prints the state of row 0 after each tile.
class Narrator : public TileObserver<float> {
 public:
  void on_tile(const FoldedTile<float>& tile) override {
    const TileState<float>& state = tile.state;
    print(
        "{:>4}   {:>4.0f} {:>4.0f}   {:>4.0f}   {:>7.4f}   {:>6.4f} {:>6.4f}   {:>7.4f}   "
        "{:>8.4f}   {:>8.4f}\n",
        number_++, tile.S(0, 0), tile.S(0, 1), state.m[0], state.alpha[0], state.S(0, 0),
        state.S(0, 1), state.l[0], state.O(0, 0), state.O(0, 0) / state.l[0]);
  }

 private:
  int number_ = 0;
};

void narrate_one_row() {
  print(
      "One query, four keys, two tiles of Bc = 2 keys. The scores are 1, 3, 2, 4, the values "
      "10, 20, 30, 40.\n"
      "No tile knows the maximum of the whole row, yet the last line is the softmax over all "
      "four:\n\n"
      "tile    scores S      m     alpha   P = exp(S - m)        l          O      O / l\n");
  Matrix<float> Q(1, 1), K(4, 1), V(4, 1), O(1, 1);
  Q << 1;
  K << 1, 3, 2, 4;
  V << 10, 20, 30, 40;
  Narrator narrator;
  tiled_forward_cpu<float>(Q, K, V, O, {.Br = 1, .Bc = 2}, 1.0, &narrator);
  print(
      "\nalpha = exp(m_old - m_new) carries l and O from the old maximum to the new one. "
      "Result: {:.4f}\n\n",
      O(0, 0));
}

// The largest |actual - expected| over max(1, largest |expected|); NaN if there is one
// anywhere.
double error(const Matrix<float>& actual, const Matrix<double>& expected) {
  const Matrix<double> difference = actual.cast<double>() - expected;
  return difference.cwiseAbs().maxCoeff<Eigen::PropagateNaN>() /
         std::max(1.0, expected.cwiseAbs().maxCoeff());
}

void compare_devices() {
  const Index Nq = 100, Nk = 150, d = 40;
  const Tiling tile{.Br = 16, .Bc = 32};
  const auto Q = random_matrix<float>(Nq, d, 0, 0), K = random_matrix<float>(Nk, d, 0, 1),
             V = random_matrix<float>(Nk, d, 0, 2);
  const auto exact =
      reference_attention(Q.cast<double>(), K.cast<double>(), V.cast<double>()).O;
  print(
      "A random head: Nq = {}, Nk = {}, d = {}, tiles of Br = {}, Bc = {}, none of which "
      "divides.\n"
      "Largest difference from naive attention in float64:\n",
      Nq, Nk, d, tile.Br, tile.Bc);

  const auto report = [&](const std::string& name, const Matrix<float>& O) {
    const double e = error(O, exact);
    print("  {:<22} {:.1e}\n", name, e);
    if (!(e <= 1e-5)) throw cli::CheckFailed(name + " differs from the reference");
  };
  Matrix<float> O(Nq, d);
  tiled_forward_cpu<float>(Q, K, V, O, tile);
  report("tiled, CPU", O);
  if (!device_available()) {
    print("  tiled, CUDA kernel     not run: this build wants a GPU, and there is none\n");
    return;
  }
  DeviceMatrix<float> device_O(Nq, d);
  tiled_forward_cuda(to_device(Q), to_device(K), to_device(V), device_O, tile);
  report("CUDA kernel (" + std::string(device_kind()) + ")", to_host(device_O));
}

// ---- the tool
// ----------------------------------------------------------------------------------

template <class T>
Matrix<T> forward(const Head<T>& head, const cli::CommonOptions& common, Tiling tile) {
  Matrix<T> O(head.Q.rows(), head.Q.cols());
  if (common.device == "cpu") {
    tiled_forward_cpu<T>(head.Q, head.K, head.V, O, tile, common.scale);
    return O;
  }
  const auto upload = [](const Matrix<T>& m) {
    return to_device(Matrix<float>(m.template cast<float>()));
  };
  DeviceMatrix<float> device_O(O.rows(), O.cols());
  tiled_forward_cuda(upload(head.Q), upload(head.K), upload(head.V), device_O, tile,
                     common.scale);
  return to_host(device_O).template cast<T>();
}

template <class T>
void run_tool(const Head<T>& head, const cli::CommonOptions& common) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  const Tiling tile = cli::chosen_tile(common, default_tiling(d, cli::tile_bytes(common)));
  cli::OutputFiles files(common.out);

  const Matrix<T> O = forward(head, common, tile);
  files.write("o.npy", to_npy(O));
  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, d);
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "03_tiled_forward", common);
    report.set("nq", Nq);
    report.set("nk", Nk);
    report.set("d", d);
    report.set("br", tile.Br);
    report.set("bc", tile.Bc);
    report.set("scale", scale);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "tiled forward on {} ({}): Q [{}, {}], K and V [{}, {}], Br = {}, Bc = {}, scale = "
      "{:.6g}\n",
      common.device, device, Nq, d, Nk, d, tile.Br, tile.Bc, scale);
  if (O.size() > 0) {
    print("first row of O:");
    for (Index c = 0; c < std::min<Index>(d, 6); ++c) print(" {:.6g}", O(0, c));
    if (d > 6) print(" ... ({} values)", d);
    print("\n");
  }
  files.print();
}

void run(const cli::Arguments& arguments) {
  cli::QkvFiles files;
  cli::CommonOptions common;
  cli::Options options("03_tiled_forward",
                       "FlashAttention's forward pass for one head, tile by tile.");
  cli::add_head(options, files, common);
  cli::add_scale(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example("03_tiled_forward --q q.npy --k k.npy --v v.npy --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    narrate_one_row();
    compare_devices();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  cli::with_head(files, common, [&](const auto& head) { run_tool(head, common); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

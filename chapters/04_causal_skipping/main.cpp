// Chapter 04, the executable. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy and counts tiles.
#include <chrono>
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/04_causal_skipping/causal_forward_cuda.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/head.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

// ---- the demonstration

const char* symbol(TileKind kind) {
  return kind == TileKind::hidden ? "." : kind == TileKind::full ? "#" : "/";
}

const char* name(TileKind kind) {
  return kind == TileKind::hidden ? "hidden" : kind == TileKind::full ? "full" : "partial";
}

// A line a query tile, a character a key tile.
void draw(Index Nq, Index Nk, Tiling tile) {
  const Index offset = mask_offset(Nq, Nk, true);
  const TileCounts counts = count_tiles(Nq, Nk, tile, true);
  print("Nq = {}, Nk = {}, Br = {}, Bc = {}: {} hidden, {} full, {} partial\n", Nq, Nk, tile.Br,
        tile.Bc, counts.hidden, counts.full, counts.partial);
  for (Index q = 0; q < Nq; q += tile.Br) {
    const Index rows = std::min(tile.Br, Nq - q);
    print("  queries {:>2} to {:>2}  ", q, q + rows - 1);
    for (Index k = 0; k < Nk; k += tile.Bc) {
      print("{}", symbol(classify_tile(q, rows, k, std::min(tile.Bc, Nk - k), offset)));
    }
    print("\n");
  }
  print("\n");
}

void draw_maps() {
  print(
      "Key j is visible to query i iff j <= i + Nk - Nq. Tiles of scores are . hidden "
      "(skipped),\n"
      "# full (nothing to mask) or / partial (each row sees its leading keys only).\n\n");
  draw(32, 32, {.Br = 4, .Bc = 4});
  draw(12, 40, {.Br = 4, .Bc = 6});
  draw(24, 12, {.Br = 4, .Bc = 4});
}

// Prints the state of one row after each tile that its query tile visits.
class Narrator : public TileObserver<float> {
 public:
  explicit Narrator(Index row, Index offset) : row_(row), offset_(offset) {}
  void on_tile(const FoldedTile<float>& tile) override {
    const TileState<float>& state = tile.state;
    const Index rows = state.l.size(), r = row_ - state.row0;
    if (r < 0 || r >= rows) return;  // another query tile
    const TileKind kind = classify_tile(state.row0, rows, state.col0, tile.S.cols(), offset_);
    print("  from key {:>2}   {:<8} {:>7}   {:>4.0f}   {:>4.0f}   {:>6.2f}\n", state.col0,
          name(kind), tile.visible[static_cast<std::size_t>(r)], state.l[r], state.O(r, 0),
          state.O(r, 0) / state.l[r]);
  }

 private:
  Index row_, offset_;
};

void narrate_one_row() {
  const Index Nq = 4, Nk = 6, row = 0;
  print(
      "One row by hand: Nq = {}, Nk = {}, Br = Bc = 2. All scores are 0, so the output is the "
      "mean of the\n"
      "visible values 0, 1, 2, ... Row {} sees the keys up to {} + {} - {} = {}:\n\n"
      "         tile   kind     visible      l      O    O / l\n",
      Nq, Nk, row, row, Nk, Nq, row + Nk - Nq);
  Matrix<float> Q = Matrix<float>::Zero(Nq, 1), K = Matrix<float>::Ones(Nk, 1), V(Nk, 1),
                O(Nq, 1);
  V << 0, 1, 2, 3, 4, 5;
  Narrator narrator(row, mask_offset(Nq, Nk, true));
  causal_forward_cpu<float>(Q, K, V, O, {.Br = 2, .Bc = 2}, true, 1.0, Visit::skip_hidden,
                            &narrator);
  print(
      "\nThe tile of keys 4 and 5 is hidden: no line, no load, no product. All rows: {} {} {} "
      "{}\n\n",
      O(0, 0), O(1, 0), O(2, 0), O(3, 0));
}

// Errata E8: "full" as k_end <= q_start, where k_end is the first key after the tile. It is off
// by one, to the safe side: it never calls a partial tile full.
void compare_bounds() {
  print(
      "A bound that is off by one: calling a tile full iff k_end <= q_start + Nk - Nq (k_end: "
      "one past its\n"
      "last key) instead of k_end - 1 <= q_start + Nk - Nq. No result is wrong, but tiles are "
      "masked for nothing:\n\n"
      "                              tight: full partial    off by one: full partial    for "
      "nothing\n");
  struct Shape {
    Index Nq, Nk;
    Tiling tile;
  };
  for (const auto& [Nq, Nk, tile] :
       {Shape{32, 32, {4, 4}}, {24, 24, {2, 3}}, {25, 25, {4, 4}}, {32, 35, {4, 4}}}) {
    const TileCounts right = count_tiles(Nq, Nk, tile, true);
    const Index offset = mask_offset(Nq, Nk, true);
    Index full = 0;
    for (Index q = 0; q < Nq; q += tile.Br) {
      for (Index k = 0; k < Nk; k += tile.Bc) full += std::min(k + tile.Bc, Nk) <= q + offset;
    }
    print("  Nq = {}, Nk = {}, Br = {}, Bc = {} {:>10} {:>7} {:>19} {:>7} {:>14}\n", Nq, Nk,
          tile.Br, tile.Bc, right.full, right.partial, full, right.full + right.partial - full,
          right.full - full);
  }
  print("\n");
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
  print(
      "A random head: Nq = {}, Nk = {}, d = {}, tiles of Br = {}, Bc = {}, none of which "
      "divides.\n"
      "Largest difference from naive attention in float64:\n"
      "                           causal   no mask\n",
      Nq, Nk, d, tile.Br, tile.Bc);

  const auto report = [&](const std::string& who, auto&& forward) {
    double e[2];
    for (const bool causal : {true, false}) {
      const auto exact = reference_attention(Q.cast<double>(), K.cast<double>(),
                                             V.cast<double>(), {.causal = causal})
                             .O;
      e[causal ? 0 : 1] = error(forward(causal), exact);
    }
    print("  {:<22} {:>8.1e}  {:>8.1e}\n", who, e[0], e[1]);
    if (!(e[0] <= 1e-5 && e[1] <= 1e-5))
      throw cli::CheckFailed(who + " differs from the reference");
  };
  report("CPU", [&](bool causal) {
    Matrix<float> O(Nq, d);
    causal_forward_cpu<float>(Q, K, V, O, tile, causal);
    return O;
  });
  if (!device_available()) {
    print("  CUDA kernel            not run: this build wants a GPU, and there is none\n\n");
    return;
  }
  const auto device_Q = to_device(Q), device_K = to_device(K), device_V = to_device(V);
  DeviceMatrix<float> O(Nq, d);
  report("CUDA kernel (" + std::string(device_kind()) + ")", [&](bool causal) {
    causal_forward_cuda(device_Q, device_K, device_V, O, tile, causal);
    return to_host(O);
  });

  // What a simulated device counts: each tile visited reads its K and V once.
  const TileCounts counts = count_tiles(Nq, Nk, tile, true);
  print("\n{} hidden, {} full, {} partial tiles.", counts.hidden, counts.full, counts.partial);
  const auto floats_read = [&](Visit visit) -> std::optional<std::int64_t> {
    reset_device_traffic();
    causal_forward_cuda(device_Q, device_K, device_V, O, tile, true, {}, visit);
    const auto traffic = device_traffic();
    if (!traffic) return std::nullopt;
    return traffic->read_bytes / 4;
  };
  if (const auto skipping = floats_read(Visit::skip_hidden)) {
    print(" Floats read by the kernel: {} if it skips, {} if it masks everything.", *skipping,
          *floats_read(Visit::all_tiles));
  }
  print("\n\n");
}

// The best of five runs, in seconds.
template <class Work>
double seconds(Work&& work) {
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void compare_times() {
  const Index N = 2048, d = 64;
  const Tiling tile{.Br = 64, .Bc = 64};
  const auto Q = random_matrix<float>(N, d, 0, 0), K = random_matrix<float>(N, d, 0, 1),
             V = random_matrix<float>(N, d, 0, 2);
  Matrix<float> O(N, d);
  const auto time = [&](bool causal, Visit visit) {
    return 1e3 *
           seconds([&] { causal_forward_cpu<float>(Q, K, V, O, tile, causal, {}, visit); });
  };
  const TileCounts counts = count_tiles(N, N, tile, true);
  print(
      "Time on this CPU, roughly: N = {}, d = {}, tiles of 64 by 64, {} hidden, {} full, {} "
      "partial.\n"
      "  no mask                  {:>6.1f} ms\n",
      N, d, counts.hidden, counts.full, counts.partial, time(false, Visit::skip_hidden));
  print("  causal, mask everything  {:>6.1f} ms\n", time(true, Visit::all_tiles));
  print("  causal, skip             {:>6.1f} ms\n", time(true, Visit::skip_hidden));
}

// ---- the tool

template <class T>
Matrix<T> forward(const Head<T>& head, const cli::CommonOptions& common, Tiling tile) {
  Matrix<T> O(head.Q.rows(), head.Q.cols());
  if (common.device == "cpu") {
    causal_forward_cpu<T>(head.Q, head.K, head.V, O, tile, common.causal, common.scale);
    return O;
  }
  const auto upload = [](const Matrix<T>& m) {
    return to_device(Matrix<float>(m.template cast<float>()));
  };
  DeviceMatrix<float> device_O(O.rows(), O.cols());
  causal_forward_cuda(upload(head.Q), upload(head.K), upload(head.V), device_O, tile,
                      common.causal, common.scale);
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
  const TileCounts counts = count_tiles(Nq, Nk, tile, common.causal);
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "04_causal_skipping", common);
    report.set("nq", Nq);
    report.set("nk", Nk);
    report.set("d", d);
    cli::report_attention(report, tile, scale, common.causal);
    report.set({"tiles", "hidden"}, counts.hidden);
    report.set({"tiles", "full"}, counts.full);
    report.set({"tiles", "partial"}, counts.partial);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "causal forward on {} ({}): Q [{}, {}], K and V [{}, {}], Br = {}, Bc = {}, scale = "
      "{:.6g}, {}\n"
      "tiles: {} hidden, {} full, {} partial\n",
      common.device, device, Nq, d, Nk, d, tile.Br, tile.Bc, scale,
      common.causal ? "causal" : "no mask", counts.hidden, counts.full, counts.partial);
  files.print();
}

void run(const cli::Arguments& arguments) {
  cli::QkvFiles files;
  cli::CommonOptions common;
  cli::Options options(
      "04_causal_skipping",
      "FlashAttention's forward pass for one head with a causal mask: hidden tiles are "
      "skipped.");
  cli::add_head(options, files, common);
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example("04_causal_skipping --q q.npy --k k.npy --v v.npy --causal --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    draw_maps();
    narrate_one_row();
    compare_bounds();
    compare_devices();
    compare_times();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  cli::with_head(files, common, [&](const auto& head) { run_tool(head, common); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

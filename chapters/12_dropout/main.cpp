// Chapter 12, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy, lse.npy and mask.npy, and with --do
// the gradients.
#include <cstdint>
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/12_dropout/attend.hpp"
#include "chapters/12_dropout/demonstration.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Files {
  cli::QkvFiles batch;
  std::optional<std::string> dO, mask;
};

template <class T>
void read_rest(const Files& files, Problem<T>& x) {
  cli::Dimensions sizes;
  const cli::Input q{files.batch.q.value_or("Q"), {{x.Q.B(), x.Q.H(), x.Q.N(), x.Q.d()}, {}}};
  const cli::Input k{files.batch.k.value_or("K"), {{x.K.B(), x.K.H(), x.K.N(), x.K.d()}, {}}};
  sizes.require(q, {"B", "H", "Nq", "d"});
  sizes.require(k, {"B", "Hkv", "Nk", "d"});
  if (files.dO) {
    const cli::Input dO = cli::read_heads(*files.dO, "--do");
    sizes.require(dO, {"B", "H", "Nq", "d"});
    x.dO = cli::to_heads<T>(dO);
  }
  if (files.mask) {
    cli::Input mask = cli::read_input(*files.mask, "--mask", cli::Content::kMask);
    if (mask.array.shape.size() == 2) {
      mask.array.shape.insert(mask.array.shape.begin(), {1, 1});
    }
    sizes.require(mask, {"B", "H", "Nq", "Nk"});
    x.mask = cli::to_heads<std::uint8_t>(mask);
    for (const std::uint8_t byte : x.mask->elements()) {
      if (byte > 1) {
        throw cli::UsageError(mask.file + ": a mask holds 0 and 1, found " +
                              std::to_string(byte));
      }
    }
  }
}

// The default tile is one that the device's shared memory has room for, in both passes.
template <class T>
Tiling choose_tile(const Problem<T>& x, const cli::CommonOptions& common) {
  const Index bytes = cli::tile_bytes(common), d = x.Q.d();
  return cli::chosen_tile(common,
                          x.dO ? default_backward_tiling(d, bytes) : default_tiling(d, bytes));
}

template <class T>
void write_files(cli::OutputFiles& files, const Problem<T>& x, const Result<T>& y,
                 std::size_t rank, bool on_device) {
  const Index B = x.Q.B(), H = x.Q.H();
  files.write("o.npy", cli::heads_to_npy(y.O, rank));
  files.write("lse.npy", cli::rows_to_npy(y.LSE, B, H, rank));
  files.write("mask.npy", cli::heads_to_npy(x.mask ? *x.mask
                                                   : computed_mask(B, H, x.Q.N(), x.K.N(),
                                                                   x.dropout, on_device),
                                            rank));
  if (x.dO) {
    files.write("dq.npy", cli::heads_to_npy(y.dQ, rank));
    files.write("dk.npy", cli::heads_to_npy(y.dK, rank));
    files.write("dv.npy", cli::heads_to_npy(y.dV, rank));
  }
}

template <class T>
void print_json(const Problem<T>& x, const cli::CommonOptions& common,
                const cli::OutputFiles& files) {
  const Index stored_bytes = x.Q.B() * x.Q.H() * x.Q.N() * x.K.N();
  cli::Report report;
  cli::report_start(report, "12_dropout", common);
  report.set("batch", x.Q.B());
  report.set("heads", x.Q.H());
  report.set("kv_heads", x.K.H());
  report.set("nq", x.Q.N());
  report.set("nk", x.K.N());
  report.set("d", x.Q.d());
  cli::report_attention(report, x.tile, resolve_scale<T>(common.scale, x.Q.d()), common.causal);
  report.set("dropout", x.dropout.p);
  report.set("seed", x.dropout.seed);
  report.set("offset", x.dropout.offset);
  report.set("mask", x.mask ? "stored" : "computed");
  report.set("mask_bytes", x.mask ? stored_bytes : Index{sizeof(Dropout)});
  report.set("mask_bytes_if_stored", stored_bytes);
  report.set("files", files.names());
  report.print();
}

template <class T>
void print_text(const Problem<T>& x, const cli::CommonOptions& common,
                const cli::OutputFiles& files) {
  const Index B = x.Q.B(), H = x.Q.H(), Nq = x.Q.N(), Nk = x.K.N(), d = x.Q.d();
  print(
      "dropout on {} ({}): Q [{}, {}, {}, {}], K and V [{}, {}, {}, {}], Br = {}, Bc = {}, "
      "scale = {:.6g}, {}\n",
      common.device, cli::computing_device(common), B, H, Nq, d, B, x.K.H(), Nk, d, x.tile.Br,
      x.tile.Bc, resolve_scale<T>(common.scale, d), common.causal ? "causal" : "no mask");
  if (x.mask) {
    print("p = {}; the mask is stored, in {} bytes\n", x.dropout.p, B * H * Nq * Nk);
  } else {
    print(
        "p = {}, seed = {}, offset = {}: {} bytes; the mask is computed (stored, it would be "
        "{} bytes)\n",
        x.dropout.p, x.dropout.seed, x.dropout.offset, sizeof(Dropout), B * H * Nq * Nk);
  }
  files.print();
}

template <class T>
void run_tool(const Batch<T>& batch, const Files& files, const Dropout& dropout,
              const cli::CommonOptions& common) {
  Problem<T> x{batch.Q, batch.K, batch.V, {}, dropout, {}, {}, common.causal, common.scale};
  read_rest(files, x);
  x.tile = choose_tile(x, common);
  cli::OutputFiles written(common.out);

  const bool on_device = common.device != "cpu";
  const Result<T> y = on_device ? compute_on_device(x) : compute_on_cpu(x);
  if (common.out) write_files(written, x, y, batch.rank, on_device);
  if (common.json) {
    print_json(x, common, written);
  } else {
    print_text(x, common, written);
  }
}

void run(const cli::Arguments& arguments) {
  Files files;
  Dropout dropout;
  cli::CommonOptions common;
  cli::Options options("12_dropout",
                       "Attention with dropout on its weights, forward and backward; the mask "
                       "is computed, not stored.");
  cli::add_batch_input(options, files.batch, common);
  options.add("--do", files.dO, "gradient of o, .npy like q: the gradients are computed, too");
  options.group("Dropout");
  options.add("--dropout", dropout.p, "probability of dropping a weight, from 0 to below 1");
  options.add("--offset", dropout.offset, "with --seed: which mask (a layer, a step)",
              {0, 4294967295});
  options.add("--mask", files.mask,
              "a stored mask instead, .npy [B, H, Nq, Nk] or [Nq, Nk], u1, 1 = kept");
  options.exclusive({"--mask"}, {"--offset"});
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example(
      "12_dropout --q q.npy --k k.npy --v v.npy --do do.npy --dropout 0.1 --seed 7 --out "
      "results");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  if (files.mask && files.batch.q && options.given("--seed") &&
      common.thread_order != "random") {
    throw cli::UsageError("--mask and --seed cannot be combined: nothing is random here");
  }
  dropout.seed = common.seed;
  use_device(common.device, common.thread_order, common.seed);
  cli::with_batch(files.batch, common,
                  [&](const auto& batch) { run_tool(batch, files, dropout, common); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

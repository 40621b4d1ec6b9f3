// Chapter 09, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy and lse.npy.
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/decode.hpp"
#include "chapters/09_flash_decoding/decoding_traffic.hpp"
#include "chapters/09_flash_decoding/demonstration.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/splits.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Request {
  cli::CommonOptions common;
  cli::QkvFiles files;
  cli::SplitOptions decoding;
};

template <class T>
DecodingOptions decoding_options(const Batch<T>& in, const Request& request) {
  const cli::CommonOptions& common = request.common;
  DecodingOptions options{.splits = request.decoding.splits.number,
                          .merge = merge_named(request.decoding.merge),
                          .causal = common.causal,
                          .scale = common.scale};
  options.tile = cli::chosen_tile(common, default_tiling(in.Q.d(), cli::tile_bytes(common)));
  return options;
}

template <class T>
void run_tool(const Batch<T>& in, const Request& request) {
  const cli::CommonOptions& common = request.common;
  const bool on_cpu = common.device == "cpu";
  const DecodingSizes sizes = sizes_of(in);
  const DecodingOptions options = decoding_options(in, request);
  const Tiling tile = decoding_tile(sizes, options.tile);
  const Index splits = on_cpu ? flash_decoding_splits_cpu(sizes, options)
                              : flash_decoding_splits_cuda(sizes, options);
  cli::OutputFiles files(common.out);

  std::optional<Traffic> moved;
  const Decoded<T> result =
      on_cpu ? decode_on_cpu(in, options) : decode_on_device(in, options, &moved);
  files.write("o.npy", cli::heads_to_npy(result.O, in.rank));
  files.write("lse.npy", cli::rows_to_npy(result.LSE, sizes.B, sizes.H, in.rank));

  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, sizes.d);
  const Index element = on_cpu ? sizeof(T) : sizeof(float);
  const DecodingTraffic t = predict_decoding(sizes, tile, splits, options.merge);
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "09_flash_decoding", common);
    report.set("batch", sizes.B);
    report.set("heads", sizes.H);
    report.set("kv_heads", sizes.Hkv);
    report.set("nq", sizes.Nq);
    report.set("nk", sizes.Nk);
    report.set("d", sizes.d);
    cli::report_attention(report, tile, scale, common.causal);
    report.set("splits", splits);
    report.set("used_splits", used_splits(sizes.Nk, tile.Bc, splits));
    report.set("merge", request.decoding.merge);
    report.set({"bytes", "keys_values"}, element * t.keys_values);
    report.set({"bytes", "parts"}, element * (t.parts_written + t.parts_read));
    report.set({"counted", "read_bytes"}, moved ? cli::Value(moved->read_bytes) : nullptr);
    report.set({"counted", "written_bytes"},
               moved ? cli::Value(moved->written_bytes) : nullptr);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "decoding on {} ({}): Q [{}, {}, {}, {}], K and V [{}, {}, {}, {}], scale = {:.6g}, {}\n"
      "splits: {} ({}), with keys: {}, tiles of Br = {}, Bc = {}, merge {}\n"
      "K and V: {} bytes; parts: {} bytes written and read\n",
      common.device, device, sizes.B, sizes.H, sizes.Nq, sizes.d, sizes.B, sizes.Hkv, sizes.Nk,
      sizes.d, scale, common.causal ? "causal" : "no mask", splits,
      options.splits ? "as asked for" : "auto", used_splits(sizes.Nk, tile.Bc, splits), tile.Br,
      tile.Bc, request.decoding.merge, element * t.keys_values,
      element * (t.parts_written + t.parts_read));
  files.print();
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::CommonOptions& common = request.common;
  common.n = 1;
  common.nk = 1024;
  cli::Options options("09_flash_decoding",
                       "Attention of a few queries to a long cache, with the keys split. Meant "
                       "for 1 to 8 queries;\nany number of them is right.");
  cli::add_batch_input(options, request.files, common);
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_splits(options, request.decoding, kMaxSplits);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example("09_flash_decoding --q q.npy --k k.npy --v v.npy --splits 8 --out results");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  use_device(common.device, common.thread_order, common.seed);
  cli::with_batch(request.files, common, [&](const auto& batch) { run_tool(batch, request); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

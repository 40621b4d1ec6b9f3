// Chapter 10, the executable. Without arguments: a narrated demonstration. With --q --kv-cache
// --block-table --seq-lens, or with sizes for random input: a tool that writes o.npy and
// lse.npy.
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/10_paged_kv/attend.hpp"
#include "chapters/10_paged_kv/demonstration.hpp"
#include "chapters/10_paged_kv/paged_traffic.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/splits.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Request {
  cli::CommonOptions common;
  std::optional<std::string> q, kv_cache, block_table, seq_lens;
  std::int64_t block_size = 16;  // of a random cache
  cli::SplitOptions decoding;
};

// Calls run(PagedInputs<float>, rank of q), or run(PagedInputs<double>, ...) for f8 files.
// Throws cli::UsageError for files whose types, shapes or contents do not fit.
template <class Run>
void with_files(const Request& request, const Run& run) {
  std::size_t rank = 4;
  const cli::Input q = cli::read_heads(*request.q, "--q", &rank),
                   cache = cli::read_input(*request.kv_cache, "--kv-cache"),
                   table = cli::read_input(*request.block_table, "--block-table",
                                           cli::Content::kTable),
                   lengths =
                       cli::read_input(*request.seq_lens, "--seq-lens", cli::Content::kTable);
  cli::require_same_dtype({&q, &cache});
  cli::Dimensions sizes;
  sizes.require(q, {"B", "H", "Nq", "d"});
  sizes.require(cache, {"2", "blocks", "Hkv", "block_size", "d"});
  sizes.require(table, {"B", "max_blocks"});
  sizes.require(lengths, {"B"});
  sizes.require_range("d", 1, 256);
  sizes.require_range("block_size", 1, cli::kMaxSize);
  cli::require_groups(sizes["H"], sizes["Hkv"], cache.file);
  const auto integers = [](const cli::Input& input) {
    return std::visit(
        [](const auto& data) { return std::vector<std::int64_t>(data.begin(), data.end()); },
        input.array.data);
  };
  const BlockTable blocks{sizes["B"], sizes["max_blocks"], integers(table), integers(lengths)};
  try {
    require_block_table(blocks, sizes["blocks"], sizes["block_size"]);
  } catch (const std::invalid_argument& error) {
    throw cli::UsageError(table.file + " with " + lengths.file + ": " + error.what());
  }
  cli::with_dtype(q, [&]<class T>(T) {
    HeadsArray<T> pool(2 * sizes["blocks"], sizes["Hkv"], sizes["block_size"], sizes["d"]);
    pool.elements() = std::get<std::vector<T>>(cache.array.data);
    run(PagedInputs<T>{cli::to_heads<T>(q), std::move(pool), blocks}, rank);
  });
}

// The longest sequence has Nk tokens, the others fewer, down to about half.
PagedInputs<float> random_inputs(const Request& request) {
  const cli::CommonOptions& common = request.common;
  const Batch<float> batch = cli::random_batch(common);
  const Index B = batch.K.B(), Nk = batch.K.N();
  std::vector<std::int64_t> lengths;
  for (Index b = 0; b < B; ++b) lengths.push_back(Nk - b * (Nk / 2) / B);
  return in_blocks(batch, lengths, request.block_size, common.seed, 0);
}

template <class T>
DecodingOptions attention_options(const PagedInputs<T>& in, const Request& request) {
  const cli::CommonOptions& common = request.common;
  DecodingOptions options{.splits = request.decoding.splits.number,
                          .merge = merge_named(request.decoding.merge),
                          .causal = common.causal,
                          .scale = common.scale};
  const Index bytes = cli::tile_bytes(common) - 1024;  // 1024: where the rows lie
  options.tile = cli::chosen_tile(common, default_tiling(in.Q.d(), bytes));
  return options;
}

// Results in T, whatever the device computes in. Also says what the kernels moved, if the
// device counts.
template <class T>
Attended<T> attend(const PagedInputs<T>& in, const DecodingOptions& options, bool on_cpu,
                   std::optional<Traffic>& moved) {
  if (on_cpu) return attend_on_cpu(in, options);
  reset_device_traffic();
  const Attended<float> out = attend_on_device(
      {in.Q.template cast<float>(), in.pool.template cast<float>(), in.table}, options);
  moved = device_traffic();
  return {out.O.cast<T>(), out.LSE.cast<T>()};
}

template <class T>
void run_tool(const PagedInputs<T>& in, std::size_t rank, const Request& request) {
  const cli::CommonOptions& common = request.common;
  const bool on_cpu = common.device == "cpu";
  const DecodingSizes sizes{in.Q.B(), in.Q.H(),           in.pool.H(),
                            in.Q.N(), in.table.longest(), in.Q.d()};
  const DecodingOptions options = attention_options(in, request);
  const Tiling tile = decoding_tile(sizes, options.tile);
  const Index splits = on_cpu ? flash_decoding_splits_cpu(sizes, options)
                              : flash_decoding_splits_cuda(sizes, options);
  cli::OutputFiles files(common.out);

  std::optional<Traffic> moved;
  const Attended<T> result = attend(in, options, on_cpu, moved);
  files.write("o.npy", cli::heads_to_npy(result.O, rank));
  files.write("lse.npy", cli::rows_to_npy(result.LSE, sizes.B, sizes.H, rank));

  const std::string device = cli::computing_device(common);
  const double scale = resolve_scale<T>(common.scale, sizes.d);
  const Index element = on_cpu ? sizeof(T) : sizeof(float);
  const PagedTraffic t =
      predict_paged(sizes, in.table.seq_lens, in.block_size(), tile, splits, options.merge);
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "10_paged_kv", common);
    report.set("batch", sizes.B);
    report.set("heads", sizes.H);
    report.set("kv_heads", sizes.Hkv);
    report.set("nq", sizes.Nq);
    report.set("seq_lens", in.table.seq_lens);
    report.set("d", sizes.d);
    report.set("blocks", in.blocks());
    report.set("block_size", in.block_size());
    cli::report_attention(report, tile, scale, common.causal);
    report.set("splits", splits);
    report.set("merge", request.decoding.merge);
    report.set({"bytes", "keys_values"}, element * t.numbers.keys_values);
    report.set({"bytes", "table"}, 4 * t.table_entries);
    report.set({"counted", "read_bytes"}, moved ? cli::Value(moved->read_bytes) : nullptr);
    report.set({"counted", "written_bytes"},
               moved ? cli::Value(moved->written_bytes) : nullptr);
    report.set("files", files.names());
    report.print();
    return;
  }
  print(
      "paged attention on {} ({}): Q [{}, {}, {}, {}], a pool of {} blocks of {} tokens, {} KV "
      "heads, scale = {:.6g}, {}\n"
      "sequences of up to {} tokens, splits: {} ({}), tiles of Br = {}, Bc = {}, merge {}\n"
      "K and V without a mask: {} bytes; the table: {} bytes\n",
      common.device, device, sizes.B, sizes.H, sizes.Nq, sizes.d, in.blocks(), in.block_size(),
      sizes.Hkv, scale, common.causal ? "causal" : "no mask", sizes.Nk, splits,
      options.splits ? "as asked for" : "auto", tile.Br, tile.Bc, request.decoding.merge,
      element * t.numbers.keys_values, 4 * t.table_entries);
  files.print();
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::CommonOptions& common = request.common;
  common.n = 1;
  common.nk = 1024;
  cli::Options options("10_paged_kv", "Attention to a cache that lies in blocks.");
  options.group("Input");
  options.add("--q", request.q, "queries, .npy [B, H, Nq, d] or [Nq, d], f4 or f8");
  options.add("--kv-cache", request.kv_cache,
              "the pool, .npy [2, blocks, Hkv, block_size, d], keys first");
  options.add("--block-table", request.block_table, ".npy [B, max_blocks], i4 or i8");
  options.add("--seq-lens", request.seq_lens, "tokens of each sequence, .npy [B], i4 or i8");
  cli::add_batch(options, common);
  cli::add_sizes(options, common);
  options.add("--block-size", request.block_size, "tokens in a block of a random pool",
              {1, cli::kMaxSize});
  options.all_or_none({"--q", "--kv-cache", "--block-table", "--seq-lens"});
  options.exclusive({"--q"},
                    {"--batch", "--heads", "--kv-heads", "--n", "--nk", "--d", "--block-size"});
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_splits(options, request.decoding, kMaxSplits);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example(
      "10_paged_kv --q q.npy --kv-cache kv.npy --block-table table.npy --seq-lens lens.npy "
      "--out results");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  use_device(common.device, common.thread_order, common.seed);
  const auto tool = [&](const auto& in, std::size_t rank) { run_tool(in, rank, request); };
  if (request.q) {
    with_files(request, tool);
  } else {
    tool(random_inputs(request), 4);
  }
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

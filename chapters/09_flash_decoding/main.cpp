// Chapter 09, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy and lse.npy.
#include <optional>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/decoding_traffic.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/09_flash_decoding/split_walk.hpp"
#include "chapters/09_flash_decoding/wrong_versions.hpp"
#include "common/cli/batch.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/splits.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/heads.hpp"
#include "common/tensor/relative_error.hpp"
#include "common/tensor/scale.hpp"

namespace {

using namespace flash_steps;
using cli::print;

constexpr Merge kMerges[] = {Merge::sequential, Merge::tree, Merge::last_block};

template <class T>
struct Decoded {
  HeadsArray<T> O;
  Matrix<T> LSE;
};

template <class T>
Decoded<T> decode_on_cpu(const cli::Batch<T>& in, const DecodingOptions& options) {
  Decoded<T> out{HeadsArray<T>(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d()),
                 Matrix<T>(in.Q.B() * in.Q.H(), in.Q.N())};
  flash_decoding_cpu<T>(in.Q.view(), in.K.view(), in.V.view(), out.O.view(), out.LSE, options);
  return out;
}

// Also says what the kernels moved, if the device counts.
template <class T>
Decoded<T> decode_on_device(const cli::Batch<T>& in, const DecodingOptions& options,
                            std::optional<Traffic>* moved = nullptr) {
  const cli::Batch<float> rounded = in.template cast<float>();
  const auto Q = to_device(rounded.Q), K = to_device(rounded.K), V = to_device(rounded.V);
  DeviceHeads<float> O(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d());
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  reset_device_traffic();
  flash_decoding_cuda(Q, K, V, O, LSE, options);
  if (moved) *moved = device_traffic();
  return {to_host(O).template cast<T>(), to_host(LSE).template cast<T>()};
}

template <class T>
DecodingSizes sizes_of(const cli::Batch<T>& in) {
  return {in.Q.B(), in.Q.H(), in.K.H(), in.Q.N(), in.K.N(), in.Q.d()};
}

cli::Batch<float> random_batch(const DecodingSizes& s) {
  return cli::random_batch<float>(s.B, s.H, s.Hkv, s.Nq, s.Nk, s.d, 0);
}

// ---- the demonstration

// Chapter 03's row, a split for each half of its keys, and one that gets none.
void narrate_one_row() {
  print(
      "One query, four keys, scores 1, 3, 2, 4, values 10, 20, 30, 40. Three splits of one "
      "tile "
      "of two keys:\n"
      "each is attention to its own keys, and needs no other.\n\n"
      "  split    keys       o_s     LSE_s    exp(LSE_s - LSE)\n");
  Matrix<double> q(1, 1), K(4, 1), V(4, 1);
  q << 1;
  K << 1, 3, 2, 4;
  V << 10, 20, 30, 40;
  const BlockRows at{.b = 0, .kv = 0, .first_row = 0, .rows = 1, .row = 0};
  const auto load = [&](Index k_start, Index cols, Matrix<double>& Kj, Matrix<double>& Vj) {
    Kj = K.middleRows(k_start, cols);
    Vj = V.middleRows(k_start, cols);
  };
  SplitParts<double> parts(3, 1, 1);
  for (Index s = 0; s < 3; ++s) {
    const KeyRange keys = split_keys(4, 2, 3, s);
    if (keys.empty()) {
      store_empty_part(parts, s, at);
    } else {
      store_part(parts, s, at, walk_split<double>(q, at, 1, keys, 2, 4, 1.0, load));
    }
  }
  const SplitParts<double> stored = parts;
  HeadsArray<double> O(1, 1, 1, 1);
  Matrix<double> LSE(1, 1);
  merge_splits_cpu<double>(parts, O.view(), LSE, Merge::sequential);
  for (Index s = 0; s < 3; ++s) {
    const KeyRange keys = split_keys(4, 2, 3, s);
    const double lse = stored.LSE(s, 0);
    if (keys.empty()) {
      print("  {:>5}    none    unread      -inf              0\n", s);
    } else {
      print("  {:>5}    {}, {}   {:>7.4f}   {:>7.4f}              {:.4f}\n", s, keys.begin,
            keys.end - 1, stored.O(s, 0), lse, std::exp(lse - LSE(0, 0)));
    }
  }
  print("\nMerged: O = {:.4f}, LSE = {:.4f}, as without splitting.\n", O.head(0, 0)(0, 0),
        LSE(0, 0));
  print("The average of the two outputs would be {:.4f}.\n\n",
        wrong::merge_by_average({{stored.O(0, 0), 0}, {stored.O(1, 0), 0}}));
  print(
      "Atomic operations cannot merge (m, l, o): parts (0, 1, 1) and (1, 1, 2) give {:.4f} by "
      "the maximum\n"
      "of m and the sums of l and o; right is {:.4f}.\n\n",
      wrong::merge_atomically({{0, 1, 1}, {1, 1, 2}}),
      (std::exp(-1.0) * 1 + 2) / (std::exp(-1.0) * 1 + 1));
}

// Who is at work, and what the parts cost: integers only.
void count_blocks() {
  const DecodingSizes sizes{1, 32, 8, 1, 131072, 128};
  const Tiling tile{4, 64};
  const Index slots = 2 * 132, Tc = ceil_div(sizes.Nk, tile.Bc);
  const Index automatic = choose_splits(sizes, tile, slots);
  print(
      "One new token, {} query heads on {} KV heads, {} keys, d = {}, on a GPU that runs {} "
      "blocks at the same\n"
      "time. With one query tile no loop order helps; more blocks do:\n\n"
      "  splits   blocks   at work   tiles one after another   parts, of K and V's bytes\n",
      sizes.H, sizes.Hkv, sizes.Nk, sizes.d, slots);
  for (const Index splits : {Index{1}, Index{4}, automatic, Index{128}, Tc}) {
    const Index blocks = splits * sizes.Hkv;
    const auto t = predict_decoding(sizes, tile, splits, Merge::sequential);
    print("  {:>6}   {:>6}   {:>6}%   {:>23}   {:>24.2f}%{}\n", splits, blocks,
          100 * std::min(blocks, slots) / slots, ceil_div(blocks, slots) * ceil_div(Tc, splits),
          100.0 * static_cast<double>(t.parts_written + t.parts_read) /
              static_cast<double>(t.keys_values),
          splits == automatic ? "   auto"
          : splits == Tc      ? "   one split per tile"
                              : "");
  }
  print("\n");
}

void compare_devices() {
  const DecodingSizes sizes{2, 8, 2, 3, 150, 40};
  const cli::Batch<float> in = random_batch(sizes);
  const auto exact =
      reference_attention_heads(in.Q.cast<double>().view(), in.K.cast<double>().view(),
                                in.V.cast<double>().view(), {.causal = true});
  print(
      "Random heads: B = {}, {} query heads on {} KV heads, Nq = {}, Nk = {}, d = {}, causal, "
      "4 "
      "splits of tiles of\n"
      "16 keys. Largest difference from naive attention in float64:\n"
      "                               O      LSE\n",
      sizes.B, sizes.H, sizes.Hkv, sizes.Nq, sizes.Nk, sizes.d);
  const auto report = [&](const std::string& who, const Decoded<float>& out) {
    const double e[] = {relative_error(out.O, exact.O), relative_error(out.LSE, exact.LSE)};
    print("  {:<24} {:.1e}  {:.1e}\n", who, e[0], e[1]);
    if (!(e[0] <= 1e-5 && e[1] <= 1e-5)) {
      throw cli::CheckFailed(who + " differs from the reference");
    }
  };
  for (const Merge merge : kMerges) {
    const DecodingOptions options{
        .splits = 4, .merge = merge, .tile = {64, 16}, .causal = true};
    report("CPU, " + std::string(merge_name(merge)), decode_on_cpu(in, options));
    if (!device_available()) continue;
    report(std::string(device_kind()) + ", " + merge_name(merge),
           decode_on_device(in, options));
  }
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
  }
  print("\n");
}

// What a simulated device counts.
void compare_bytes() {
  const DecodingSizes sizes{1, 8, 2, 1, 512, 32};
  const Tiling tile{4, 16};
  const cli::Batch<float> in = random_batch(sizes);
  const Index must = 2 * sizes.Hkv * sizes.Nk * sizes.d * 4;
  std::optional<Traffic> moved;
  if (!device_available()) return;
  decode_on_device(in, {.splits = 1, .tile = tile}, &moved);
  if (!moved) return;  // a GPU does not count
  print(
      "Bytes counted: {} query heads on {} KV heads, {} keys, d = {}, tiles of 16 keys. K and "
      "V "
      "are {} bytes.\n\n"
      "  splits       read    written    beyond K and V\n",
      sizes.H, sizes.Hkv, sizes.Nk, sizes.d, must);
  for (const Index splits : {1, 4, 8, 32}) {
    decode_on_device(in, {.splits = splits, .tile = tile}, &moved);
    const std::int64_t all = moved->read_bytes + moved->written_bytes;
    print("  {:>6}   {:>8}   {:>8}   {:>14.1f}%\n", splits, moved->read_bytes,
          moved->written_bytes,
          100.0 * static_cast<double>(all - must) / static_cast<double>(must));
  }
  print("\n");
}

// ---- the tool

struct Request {
  cli::CommonOptions common;
  cli::QkvFiles files;
  cli::SplitOptions decoding;
};

template <class T>
DecodingOptions decoding_options(const cli::Batch<T>& in, const Request& request) {
  const cli::CommonOptions& common = request.common;
  DecodingOptions options{.splits = request.decoding.splits.number,
                          .merge = merge_named(request.decoding.merge),
                          .causal = common.causal,
                          .scale = common.scale};
  options.tile = cli::chosen_tile(common, default_tiling(in.Q.d(), cli::tile_bytes(common)));
  return options;
}

template <class T>
void run_tool(const cli::Batch<T>& in, const Request& request) {
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

  if (!options.any_given()) {
    narrate_one_row();
    count_blocks();
    compare_bytes();
    compare_devices();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  cli::with_batch(request.files, common, [&](const auto& batch) { run_tool(batch, request); });
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

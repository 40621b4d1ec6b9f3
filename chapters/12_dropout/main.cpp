// Chapter 12, the executable. Without arguments: a narrated demonstration. With --q --k --v, or
// with sizes for random input: a tool that writes o.npy, lse.npy and mask.npy, and with --do
// the gradients.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/12_dropout/dropout_backward.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"
#include "chapters/12_dropout/wrong_versions.hpp"
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

using Mask = HeadsArray<std::uint8_t>;

template <class T>
struct Problem {
  HeadsArray<T> Q, K, V;
  std::optional<HeadsArray<T>> dO;
  Dropout dropout;
  std::optional<Mask> mask;  // in place of the computed one
  Tiling tile;
  bool causal = false;
  std::optional<double> scale;
};

template <class T>
struct Result {
  HeadsArray<T> O;
  Matrix<T> LSE;
  HeadsArray<T> dQ, dK, dV;  // if there is a dO
};

template <class T>
Result<T> compute_on_cpu(const Problem<T>& x) {
  const auto like = [](const HeadsArray<T>& a) {
    return HeadsArray<T>(a.B(), a.H(), a.N(), a.d());
  };
  std::optional<HeadsView<const std::uint8_t>> mask;
  if (x.mask) mask.emplace(x.mask->view());
  const auto* stored = mask ? &*mask : nullptr;

  Result<T> y{like(x.Q), Matrix<T>(x.Q.B() * x.Q.H(), x.Q.N()), {}, {}, {}};
  dropout_forward_cpu<T>(x.Q.view(), x.K.view(), x.V.view(), y.O.view(), y.LSE, x.dropout,
                         x.tile, x.causal, x.scale, stored);
  if (!x.dO) return y;
  y.dQ = like(x.Q);
  y.dK = like(x.K);
  y.dV = like(x.K);
  Matrix<T> delta(y.LSE.rows(), y.LSE.cols());
  const HeadsView<const T> O = y.O.view();
  dropout_backward_cpu<T>(x.Q.view(), x.K.view(), x.V.view(), O, y.LSE, x.dO->view(), delta,
                          y.dQ.view(), y.dK.view(), y.dV.view(), x.dropout, x.tile, x.causal,
                          x.scale, stored);
  return y;
}

// The device computes in float32.
template <class T>
Result<T> compute_on_device(const Problem<T>& x) {
  const auto upload = [](const HeadsArray<T>& a) {
    return to_device(a.template cast<float>());
  };
  const auto Q = upload(x.Q), K = upload(x.K), V = upload(x.V);
  std::optional<DeviceHeads<std::uint8_t>> mask;
  if (x.mask) mask.emplace(to_device(*x.mask));
  const auto* stored = mask ? &*mask : nullptr;

  DeviceHeads<float> O(Q.layout());
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  dropout_forward_cuda(Q, K, V, O, LSE, x.dropout, x.tile, x.causal, x.scale, stored);
  Result<T> y{to_host(O).template cast<T>(), to_host(LSE).template cast<T>(), {}, {}, {}};
  if (!x.dO) return y;
  const auto dO = upload(*x.dO);
  DeviceHeads<float> dQ(Q.layout()), dK(K.layout()), dV(V.layout());
  DeviceMatrix<float> delta(LSE.rows(), LSE.cols());
  dropout_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, x.dropout, x.tile, x.causal,
                        x.scale, stored);
  y.dQ = to_host(dQ).template cast<T>();
  y.dK = to_host(dK).template cast<T>();
  y.dV = to_host(dV).template cast<T>();
  return y;
}

Mask computed_mask(Index B, Index H, Index Nq, Index Nk, const Dropout& dropout,
                   bool on_device) {
  Mask kept(B, H, Nq, Nk);
  if (!on_device) {
    dropout_mask_cpu(kept.view(), dropout);
    return kept;
  }
  DeviceHeads<std::uint8_t> device(B, H, Nq, Nk);
  dropout_mask_cuda(device, dropout);
  return to_host(device);
}

// ---- the demonstration

HeadsArray<float> column(const std::vector<float>& values) {
  HeadsArray<float> heads(1, 1, static_cast<Index>(values.size()), 1);
  heads.elements() = values;
  return heads;
}

Mask one_row(const std::vector<std::uint8_t>& kept) {
  Mask mask(1, 1, 1, static_cast<Index>(kept.size()));
  mask.elements() = kept;
  return mask;
}

// One query of 1 against keys that are their own scores.
Result<float> one_query(const std::vector<float>& scores, const std::vector<float>& values,
                        const std::vector<std::uint8_t>& kept, double p, bool backward) {
  Problem<float> x{
      column({1}), column(scores), column(values), {}, {.p = p}, one_row(kept), {}, false, 1.0};
  if (backward) x.dO = column({1});
  return compute_on_cpu(x);
}

void show_the_mask() {
  const Dropout dropout{.p = 0.5, .seed = 7, .offset = 0};
  print(
      "The mask is a function of the place. p = {}, seed = {}: a number below {} of 2^32 "
      "drops.\n"
      "Head 0, queries 0 to 3, keys 0 to 7, a call of Philox having the numbers of four "
      "keys:\n\n",
      dropout.p, dropout.seed, PhiloxMask(dropout, 1).threshold);
  for (std::uint32_t row = 0; row < 4; ++row) {
    print("  query {}:", row);
    for (std::uint32_t quad = 0; quad < 2; ++quad) {
      for (const std::uint32_t word : philox({{quad, row, 0, 0}}, dropout.seed).word) {
        print("  {:>10}{}", word, word >= (1u << 31) ? '*' : ' ');
      }
    }
    print("\n");
  }
  print("\nKept are those with a star.\n\n");
}

void narrate_the_order() {
  const float ln3 = std::log(3.0f);
  print(
      "One query, weights P = 0.25 and 0.75, values 1 and 0: O = 0.25 without dropout. With "
      "p = 0.5, all\nfour masks, each as likely:\n\n"
      "  mask    drop what the softmax gave    drop, then sum\n");
  double right = 0;
  for (const int mask : {0, 1, 2, 3}) {
    const std::vector<std::uint8_t> kept{static_cast<std::uint8_t>(mask & 1),
                                         static_cast<std::uint8_t>(mask >> 1)};
    const double O = one_query({0, ln3}, {1, 0}, kept, 0.5, false).O.elements()[0];
    right += O / 4;
    const wrong::DropoutRow row{{0, std::log(3.0)},
                                {1, 0},
                                {static_cast<double>(kept[0]), static_cast<double>(kept[1])},
                                0.5};
    const double wrong_O = wrong::dropout_before_the_sum(row);
    print("  {} {} {:>29.2f} {:>17.2f}\n", kept[0], kept[1], O,
          std::isnan(wrong_O) ? NAN : wrong_O);  // of either sign
  }
  print(
      "  mean {:>28.2f}\n\nThe second order makes the kept weights sum to 1 again: no mean "
      "over "
      "masks brings P back.\n\n",
      right);
  if (!(std::abs(right - 0.25) < 1e-6)) throw cli::CheckFailed("the mean over masks is wrong");
}

void narrate_one_row_backward() {
  const std::vector<float> scores{0, 1, 2}, values{1, 2, 4};
  const Result<float> y = one_query(scores, values, {1, 0, 1}, 0.5, true);
  const float LSE = y.LSE(0, 0), O = y.O.elements()[0];
  const wrong::DropoutRow row{{0, 1, 2}, {1, 2, 4}, {1, 0, 1}, 0.5};
  const std::vector<double> wrong_dS = wrong::dS_from_dropped_weights(row);
  print(
      "Backward by hand: scores 0, 1, 2, values 1, 2, 4, mask 1 0 1, p = 0.5, dO = 1. "
      "LSE = {:.4f}, O = D = {:.4f}.\n\n"
      "  P        Z    Z P = dV    dP = Z V    dS = P (dP - D)    with Z P for P\n",
      LSE, O);
  double sum = 0, wrong_sum = 0;
  for (std::size_t j = 0; j < 3; ++j) {
    const double P = std::exp(scores[j] - LSE), Z = j == 1 ? 0 : 2, dS = y.dK.elements()[j];
    sum += dS;
    wrong_sum += wrong_dS[j];
    print("  {:.4f}   {} {:>11.4f} {:>11.0f} {:>18.4f} {:>17.4f}\n", P, Z, y.dV.elements()[j],
          Z * values[j], dS, wrong_dS[j] + 0.0);  // not -0
  }
  print(
      "  sum {:>48.4f} {:>17.4f}\n\nA shift of all scores changes nothing, so dS sums to "
      "0.\n\n",
      std::abs(sum) < 1e-6 ? 0.0 : sum, wrong_sum);
}

void compare_memory() {
  print(
      "What carries the mask to the backward pass, 16 heads, in bytes:\n\n"
      "          N    stored, a byte a weight    seed, offset and p\n");
  for (const Index N : {1024, 4096, 16384}) {
    print("  {:>9} {:>26} {:>21}\n", N, 16 * N * N, sizeof(Dropout));
  }
  print("\n");
}

void compare_devices() {
  const Index B = 2, H = 4, Hkv = 2, Nq = 70, Nk = 50, d = 24;
  Problem<float> x;
  x.Q = random_heads<float>(B, H, Nq, d, 0, 0);
  x.K = random_heads<float>(B, Hkv, Nk, d, 0, 1);
  x.V = random_heads<float>(B, Hkv, Nk, d, 0, 2);
  x.dO = random_heads<float>(B, H, Nq, d, 1, 0);
  x.dropout = {.p = 0.1, .seed = 42, .offset = 3};
  x.tile = {16, 32};
  x.causal = true;

  const Mask mask = computed_mask(B, H, Nq, Nk, x.dropout, false);
  ReferenceHeadsOptions options{.causal = true, .dropout = x.dropout.p};
  for (Index head = 0; head < B * H; ++head) {
    options.masks.emplace_back(mask.head(head / H, head % H));
  }
  const auto Q = x.Q.cast<double>(), K = x.K.cast<double>(), V = x.V.cast<double>(),
             dO = x.dO->cast<double>();
  const auto forward = reference_attention_heads(Q.view(), K.view(), V.view(), options);
  const auto backward =
      reference_backward_heads(Q.view(), K.view(), V.view(), dO.view(), options);
  print(
      "A random batch: B = {}, {} query heads on {} key/value heads, Nq = {}, Nk = {}, d = {}, "
      "causal,\np = {}. Largest difference from naive attention in float64 with that mask, "
      "relative to the\nlargest value where that is more than 1:\n"
      "                              O      LSE       dQ       dK       dV\n",
      B, H, Hkv, Nq, Nk, d, x.dropout.p);
  const auto report = [&](const std::string& name, const Result<float>& y) {
    const double errors[] = {relative_error(y.O, forward.O), relative_error(y.LSE, forward.LSE),
                             relative_error(y.dQ, backward.dQ),
                             relative_error(y.dK, backward.dK),
                             relative_error(y.dV, backward.dV)};
    print("  {:<22}", name);
    for (const double e : errors) print("  {:.1e}", e);
    print("\n");
    for (const double e : errors) {
      if (!(e <= 1e-4)) throw cli::CheckFailed(name + " differs from the reference");
    }
  };
  const Result<float> computed = compute_on_cpu(x);
  report("CPU", computed);
  Problem<float> with_stored = x;
  with_stored.mask = mask;
  const Result<float> stored = compute_on_cpu(with_stored);
  const bool same = stored.O.elements() == computed.O.elements() &&
                    stored.dQ.elements() == computed.dQ.elements() &&
                    stored.dK.elements() == computed.dK.elements() &&
                    stored.dV.elements() == computed.dV.elements();
  if (!device_available()) {
    print("  CUDA kernels           not run: this build wants a GPU, and there is none\n");
  } else {
    report("CUDA kernels (" + std::string(device_kind()) + ")", compute_on_device(x));
    const Mask there = computed_mask(B, H, Nq, Nk, x.dropout, true);
    print("\nThe mask's {} bits are the same on both: {}.", mask.elements().size(),
          there.elements() == mask.elements() ? "yes" : "no");
    if (there.elements() != mask.elements()) throw cli::CheckFailed("the masks differ");
  }
  print("\nWith the mask stored instead of computed, all results have the same bits: {}.\n",
        same ? "yes" : "no");
  if (!same) throw cli::CheckFailed("a stored mask gives another result");
}

// ---- the tool

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
void run_tool(const cli::Batch<T>& batch, const Files& files, const Dropout& dropout,
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

  if (!options.any_given()) {
    show_the_mask();
    narrate_the_order();
    narrate_one_row_backward();
    compare_memory();
    compare_devices();
    return;
  }
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

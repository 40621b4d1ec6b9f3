#include "common/cli/common_options.hpp"

namespace flash_steps::cli {

void add_sizes(Options& options, CommonOptions& common) {
  options.group("Sizes");
  options.add("--n", common.n, "rows of a random Q", {0, kMaxSize});
  options.add("--nk", common.nk, "rows of a random K and V, n if not given", {0, kMaxSize});
  options.add("--d", common.d, "head dimension of random inputs", {1, 256});
  options.add("--seed", common.seed, "seed of everything random");
}

void add_batch(Options& options, CommonOptions& common) {
  options.group("Sizes");
  options.add("--batch", common.batch, "sequences in a random batch", {1, kMaxSize});
  options.add("--heads", common.heads, "query heads of random inputs", {1, kMaxSize});
  options.add("--kv-heads", common.kv_heads, "their K/V heads, as many if not given",
              {1, kMaxSize});
}

void add_scale(Options& options, CommonOptions& common) {
  options.group("Attention");
  options.add("--scale", common.scale, "factor on the scores, 1/sqrt(d) if not given");
}

void add_causal(Options& options, CommonOptions& common) {
  options.group("Attention");
  options.add_flag("--causal", common.causal, "query i sees keys j <= i + Nk - Nq only");
}

void add_tiles(Options& options, CommonOptions& common) {
  options.group("Sizes");
  options.add("--br", common.br, "rows of a Q tile, chosen to fit if not given", {1, kMaxSize});
  options.add("--bc", common.bc, "rows of a K/V tile, chosen to fit if not given",
              {1, kMaxSize});
}

void add_device(Options& options, CommonOptions& common) {
  options.group("Device");
  options.add_choice("--device", common.device, {"cpu", "sim", "cuda"},
                     "C++, or the CUDA kernels simulated or on a GPU");
  options.add_choice("--thread-order", common.thread_order, {"forward", "reverse", "random"},
                     "order in which sim runs the threads of a block");
}

void add_output(Options& options, CommonOptions& common) {
  options.group("Output");
  options.add("--out", common.out,
              "directory for the resulting .npy files, created if missing");
  options.add_flag("--json", common.json, "print one JSON object instead of prose");
}

}  // namespace flash_steps::cli

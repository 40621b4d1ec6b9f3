// The options that chapters share. A chapter registers the groups that it takes:
//
//   cli::CommonOptions common;
//   cli::add_sizes(options, common);
//   cli::add_device(options, common);
//
// The defaults in --help are the values that `common` has at that moment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/cli/options.hpp"

namespace flash_steps::cli {

// Where the shared options end up.
struct CommonOptions {
  std::int64_t n = 128;            // rows of a random Q
  std::optional<std::int64_t> nk;  // rows of a random K and V; n if not given
  std::int64_t d = 64;             // head dimension of random inputs
  std::uint64_t seed = 0;

  std::int64_t batch = 1;
  std::int64_t heads = 1;                // query heads
  std::optional<std::int64_t> kv_heads;  // heads if not given

  std::optional<double> scale;  // 1/sqrt(d) if not given
  bool causal = false;

  std::optional<std::int64_t> br, bc;  // rows of a Q tile, of a K/V tile

  std::string device = "cpu";               // "cpu", "sim" or "cuda"
  std::optional<std::string> thread_order;  // "forward", "reverse" or "random"

  std::optional<std::string> out;  // directory
  bool json = false;
};

// --n --nk --d --seed: random input.
void add_sizes(Options& options, CommonOptions& common);
// --batch --heads --kv-heads: random input of the batched chapters.
void add_batch(Options& options, CommonOptions& common);
// --scale
void add_scale(Options& options, CommonOptions& common);
// --causal
void add_causal(Options& options, CommonOptions& common);
// --br --bc
void add_tiles(Options& options, CommonOptions& common);
// --device --thread-order
void add_device(Options& options, CommonOptions& common);
// --out --json
void add_output(Options& options, CommonOptions& common);

}  // namespace flash_steps::cli

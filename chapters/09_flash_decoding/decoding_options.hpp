// What both twins are asked for, and what they check. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "chapters/09_flash_decoding/splits.hpp"
#include "common/tensor/layout.hpp"
#include "common/tensor/shapes.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// How the parts of a row become its result. The order is fixed, whoever comes first.
enum class Merge {
  sequential,  // a second step, one part after another
  tree,        // a second step, in pairs: 0 with 1, 2 with 3, ..., then 0 with 2, ...
  last_block,  // no second step: of the blocks that share rows, the last to finish merges
};

const char* merge_name(Merge merge);         // "sequential", "tree" or "last_block"
Merge merge_named(const std::string& name);  // throws std::invalid_argument for another

struct DecodingOptions {
  std::optional<std::int64_t> splits = {};  // from 1 to kMaxSplits; none: choose_splits
  Merge merge = Merge::sequential;
  Tiling tile = {};                  // of the query rows that share a KV head, and of the keys
  bool causal = false;               // query i sees the keys j <= i + Nk - Nq
  std::optional<double> scale = {};  // none: 1 / sqrt(d)
};

// Q and O [B, H, Nq, d], K and V [B, Hkv, Nk, d], LSE (B * H, Nq), where Hkv divides H and
// 1 <= d <= 256. Throws std::invalid_argument naming the first that does not fit.
DecodingSizes require_decoding_shapes(const HeadsLayout& Q, const HeadsLayout& K,
                                      const HeadsLayout& V, const HeadsLayout& O, Shape LSE);

// The tile as it is used: no larger than there are rows and keys. Throws std::invalid_argument
// unless Br >= 1 and Bc >= 1.
Tiling decoding_tile(const DecodingSizes& sizes, Tiling tile);

// The number of splits asked for, or chosen for so many slots. Throws std::invalid_argument for
// one out of range.
std::int64_t decoding_splits(const DecodingSizes& sizes, const DecodingOptions& options,
                             std::int64_t slots);

}  // namespace flash_steps

// --q --k --v: what the executables that read one head and those that read a batch share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cli/input.hpp"
#include "common/cli/options.hpp"

namespace flash_steps::cli {

struct QkvFiles {
  std::optional<std::string> q, k, v;
};

// --q --k --v, all or none; the shapes are those of the help.
inline void add_qkv(Options& options, QkvFiles& files, const std::string& q_shape,
                    const std::string& kv_shape) {
  options.group("Input");
  options.add("--q", files.q, "queries, .npy " + q_shape + ", f4 or f8");
  options.add("--k", files.k, "keys, .npy " + kv_shape);
  options.add("--v", files.v, "values, .npy " + kv_shape);
  options.all_or_none({"--q", "--k", "--v"});
}

// The sizes of three arrays with dimensions of these names, the last of them d, from 1 to 256.
// Throws UsageError for types or shapes that do not fit.
inline Dimensions require_qkv(const Input& q, const Input& k, const Input& v,
                              const std::vector<std::string>& q_names,
                              const std::vector<std::string>& kv_names) {
  require_same_dtype({&q, &k, &v});
  Dimensions sizes;
  sizes.require(q, q_names);
  sizes.require(k, kv_names);
  sizes.require(v, kv_names);
  sizes.require_range("d", 1, 256);
  return sizes;
}

}  // namespace flash_steps::cli

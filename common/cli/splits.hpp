// --splits and --merge, for the chapters that split the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/cli/error.hpp"
#include "common/cli/options.hpp"

namespace flash_steps::cli {

// A number, or none for auto. The three functions are what Options::add asks of a type.
struct SplitCount {
  std::optional<std::int64_t> number;
};
inline const char* placeholder(const SplitCount&) { return "N|auto"; }
inline std::string value_text(const SplitCount&) { return "auto"; }
inline void parse_value(const std::string& option, const std::string& text, SplitCount& splits,
                        Range range) {
  if (text == "auto") return splits.number.reset();
  try {
    parse_value(option, text, splits.number, range);
  } catch (const UsageError&) {
    throw UsageError(option + " expects auto or an integer " + range.text() + ", found '" +
                     text + "'");
  }
}

struct SplitOptions {
  SplitCount splits;
  std::string merge = "sequential";
};

inline void add_splits(Options& options, SplitOptions& request, std::int64_t most) {
  options.group("Splits");
  options.add("--splits", request.splits,
              "number of splits, or as many as keep the device busy", {1, most});
  options.add_choice("--merge", request.merge, {"sequential", "tree", "last_block"},
                     "how the parts become one result");
}

}  // namespace flash_steps::cli

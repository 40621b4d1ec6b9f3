// --out DIR.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/tensor/npy.hpp"

namespace flash_steps::cli {

// The directory that --out names, created with its parents if missing. Throws UsageError when
// it cannot be created or written to: before the work starts, not after it.
std::filesystem::path make_output_directory(const std::string& directory);

// The files of a run: written into the directory of --out, or nowhere without it.
class OutputFiles {
 public:
  // Makes the directory, if one is asked for. Throws as make_output_directory does.
  explicit OutputFiles(const std::optional<std::string>& directory) {
    if (directory) directory_ = make_output_directory(*directory);
  }

  // Throws NpyWriteError.
  void write(const std::string& name, const NpyArray& array);

  // The files written so far, in that order.
  const std::vector<std::string>& names() const { return names_; }

  // A line "wrote NAME" for each of them.
  void print() const;

 private:
  std::optional<std::filesystem::path> directory_;
  std::vector<std::string> names_;
};

}  // namespace flash_steps::cli

#include "common/cli/output_directory.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/cli/error.hpp"
#include "common/cli/print.hpp"

namespace flash_steps::cli {

std::filesystem::path make_output_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK | X_OK) != 0)
    error = {errno, std::generic_category()};
  if (error) {
    throw UsageError(fmt::format("--out: cannot use '{}' as the output directory: {}",
                                 directory, error.message()));
  }
  return directory;
}

void OutputFiles::write(const std::string& name, const NpyArray& array) {
  if (!directory_) return;
  write_npy(*directory_ / name, array);
  names_.push_back((*directory_ / name).string());
}

void OutputFiles::print() const {
  for (const std::string& name : names_) cli::print("wrote {}\n", name);
}

}  // namespace flash_steps::cli

// --out DIR.
#pragma once

#include <filesystem>
#include <string>

namespace flash_steps::cli {

// The directory that --out names, created with its parents if missing. Throws UsageError when
// it cannot be created or written to: before the work starts, not after it.
std::filesystem::path make_output_directory(const std::string& directory);

}  // namespace flash_steps::cli

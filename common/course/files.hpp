// Files as the course tool sees them: whole texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace flash_steps::course {

namespace fs = std::filesystem;

// Throws std::runtime_error naming the file.
std::string read_file(const fs::path& path);

// The last bytes of a file, at most `most`.
std::string read_end(const fs::path& path, std::streamoff most);

// Creates the directories above it. A reader sees the old text or the new one, never a part.
void write_file(const fs::path& path, const std::string& text);

// Leaves a file alone that has this text already, so that nothing is compiled again for it.
// True if it was written.
bool write_if_changed(const fs::path& path, const std::string& text);

// The files below root as sorted relative paths with '/'. Left out: build*/ at the top, and
// every file and directory whose name begins with a dot, but .clang-format and .gitignore.
std::vector<std::string> project_files(const fs::path& root);

// Whether `path` is one of `entries` or lies below one: "tests/mutants" has all of it.
bool is_below(const std::string& path, const std::vector<std::string>& entries);

// FNV-1a, to notice changes; no protection against anybody.
std::uint64_t hash_text(const std::string& text);

// The lines of a text, without their ends.
std::vector<std::string> split_lines(const std::string& text);

std::string trimmed(const std::string& text);

// base64, on one line; from_base64 skips what is no digit of it.
std::string to_base64(const std::string& bytes);
std::string from_base64(const std::string& text);

}  // namespace flash_steps::course

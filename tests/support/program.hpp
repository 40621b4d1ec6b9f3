// Running an executable of the project as a user would, and folders that go away again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flash_steps::test {

struct ProgramResult {
  int exit_code;  // -1: it died of a signal
  std::string out, err;
};

// Runs `program` with the arguments as they are (no shell), standard input empty.
ProgramResult run_program(const std::string& program,
                          const std::vector<std::string>& arguments);

// A fresh folder below the system's temporary one, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  std::filesystem::path path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace flash_steps::test

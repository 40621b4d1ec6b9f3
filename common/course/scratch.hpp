// The scratch copy in which answers are tried: the reference everywhere, but for the answers on
// trial. So an unfinished chapter blocks no other, and whatever else a student changed, in the
// tests for one, has no effect. It is kept from one check to the next, and only files whose
// text changes are written: what did not change is not compiled again.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/course/submission.hpp"

namespace flash_steps::course {

struct BuildResult {
  bool ok = false, timed_out = false;
  std::vector<std::string> errors;  // the first few, as the compiler puts them
};

class Scratch {
 public:
  // `device` is sim or cuda. Waits until no other `course` works in the same copy.
  Scratch(const Project& project, const std::string& device);
  ~Scratch();
  Scratch(const Scratch&) = delete;

  // Brings the sources to: the reference, with these bodies (id -> answer).
  void put(const std::map<std::string, Answer>& answers);

  // Configures if that has not been done, and builds these targets.
  BuildResult build(const std::vector<std::string>& targets);

  fs::path program(const std::string& name) const { return build_ / "bin" / name; }
  fs::path folder() const { return folder_; }

 private:
  bool is_configured() const;
  BuildResult run_step(const std::vector<std::string>& arguments, double seconds);
  const Project& project_;
  std::string device_;
  fs::path folder_, source_, build_;
  int lock_ = -1;
};

// The errors in a compiler's output, at most `most`: from the first "error:" lines of g++,
// clang, nvcc and the linker.
std::vector<std::string> find_errors(const std::string& output, std::size_t most);

}  // namespace flash_steps::course

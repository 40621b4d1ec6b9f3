// Running cases of a test program, a process each, and finding out what became of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/course/files.hpp"
#include "common/course/manifest.hpp"

namespace flash_steps::course {

// passed is the only good one. ended: the process ended, whatever its exit code, before the run
// did. empty: the case is not there, or asserted nothing. skipped: there is no GPU.
enum class Outcome { passed, failed, not_started, crashed, timed_out, ended, empty, skipped };
std::string to_string(Outcome outcome);

struct TestResult {
  std::string name;
  Outcome outcome = Outcome::empty;
  double seconds = 0;
  int assertions = 0;
  std::vector<std::string> details;  // what to look at, where it did not pass
};

struct TestSettings {
  fs::path program, folder;  // folder: for output and reports
  std::uint64_t seed = 0;    // of the data
  Limits limits;
  bool limit_memory = true;
  int jobs = 1;                  // processes at a time
  bool stop_at_failure = false;  // start no more cases once one did not pass
};

// Results in the order of `names`, without those that were not run: with stop_at_failure, and
// in any case once one had to be ended after its time, no more are started. `done` is called as
// each one ends.
std::vector<TestResult> run_tests(const TestSettings& settings,
                                  const std::vector<std::string>& names,
                                  const std::function<void(const TestResult&)>& done = {});

// What a report (tests/support/report.hpp) says about this case; Outcome::ended if it is none
// or does not hold the token.
TestResult read_report(const std::string& report, const std::string& token,
                       const std::string& name);

}  // namespace flash_steps::course

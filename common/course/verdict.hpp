// What the tool says about one graded id.
#pragma once

#include <string>
#include <vector>

#include "common/course/test_run.hpp"

namespace flash_steps::course {

enum class State {
  not_started,
  does_not_compile,
  crashed,
  timed_out,
  wrong,
  needs_gpu,  // written; what the simulator cannot run is not judged without a GPU
  not_on_gpu,
  done
};

std::string to_string(State state);  // "does not compile", ...
State parse_state(const std::string& word);

// not_on_gpu is as good as done where there is no GPU: full points.
inline bool passes(State state) { return state == State::not_on_gpu || state == State::done; }

struct Verdict {
  std::string id;
  State state = State::not_started;
  std::vector<std::string> lines;  // the first one helps by itself; more to look at
  std::vector<TestResult> tests, traffic;
  int points = 0, most_points = 0;
  bool traffic_met = false;
  bool missing = false;  // not started, for its file was not handed in
  double seconds = 0;    // from start to verdict, of an id that was tried by itself
};

// The state that the results of an id's tests amount to, and its lines. All of `expected` must
// have passed; what is missing did not.
void judge(Verdict& verdict, const std::vector<std::string>& expected, std::uint64_t seed);

}  // namespace flash_steps::course

#include "common/course/verdict.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace flash_steps::course {
namespace {

constexpr std::array<std::pair<State, const char*>, 8> kNames{{
    {State::not_started, "not started"},
    {State::does_not_compile, "does not compile"},
    {State::crashed, "crashed"},
    {State::timed_out, "timed out"},
    {State::wrong, "wrong"},
    {State::needs_gpu, "written, needs a GPU"},
    {State::not_on_gpu, "passes, not yet run on a GPU"},
    {State::done, "done"},
}};

State state_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::crashed:
    case Outcome::ended:
      return State::crashed;
    case Outcome::timed_out:
      return State::timed_out;
    case Outcome::not_started:
      return State::not_started;
    default:
      return State::wrong;
  }
}

}  // namespace

std::string to_string(State state) {
  for (const auto& [value, name] : kNames) {
    if (value == state) return name;
  }
  return "";
}

State parse_state(const std::string& word) {
  for (const auto& [value, name] : kNames) {
    if (word == name) return value;
  }
  throw std::runtime_error("'" + word + "' is no state of an exercise");
}

void judge(Verdict& verdict, const std::vector<std::string>& expected, std::uint64_t seed) {
  std::size_t passed = 0;
  const TestResult* failure = nullptr;
  for (const TestResult& test : verdict.tests) {
    if (test.outcome == Outcome::passed) {
      ++passed;
    } else if (!failure) {
      failure = &test;
    }
  }
  if (!failure && passed == expected.size() && passed > 0) {
    verdict.state = State::done;
    verdict.lines = {fmt::format("{} test{} passed", passed, passed == 1 ? "" : "s")};
    return;
  }
  if (!failure) {  // something expected was never run, or nothing is expected
    verdict.state = State::wrong;
    verdict.lines = {fmt::format("only {} of {} tests ran", passed, expected.size())};
    return;
  }
  verdict.state = state_of(failure->outcome);
  verdict.lines = failure->details;
  verdict.lines.push_back("in \"" + failure->name + "\"");
  verdict.lines.push_back(
      fmt::format("the same data again: course check {} --seed {}", verdict.id, seed));
}

}  // namespace flash_steps::course

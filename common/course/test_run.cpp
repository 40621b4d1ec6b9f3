#include "common/course/test_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <random>
#include <regex>
#include <thread>

#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

std::string fresh_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// The last lines that a program wrote before it died, without those of doctest.
std::vector<std::string> last_words(const fs::path& output) {
  static const std::regex kDoctest(
      R"(\[doctest\].*|=+|TEST CASE:.*|.*test case CRASHED.*|.*:[0-9]+:)");
  std::vector<std::string> lines;
  for (const std::string& line : split_lines(read_end(output, 1 << 16))) {
    const std::string text = trimmed(line).substr(0, 200);
    if (!text.empty() && !std::regex_match(text, kDoctest)) lines.push_back(text);
  }
  return {lines.end() - std::min<std::ptrdiff_t>(3, std::ssize(lines)), lines.end()};
}

// One case on its way.
class RunningTest {
 public:
  RunningTest(const TestSettings& settings, std::size_t index, const std::string& name)
      : index_(index), name_(name), token_(fresh_token()) {
    output_ = settings.folder / fmt::format("test-{}.log", index);
    report_ = settings.folder / fmt::format("test-{}.report", index);
    workplace_ = settings.folder / fmt::format("test-{}", index);
    fs::remove_all(report_);
    fs::remove_all(workplace_);
    fs::create_directories(workplace_);
    Command command;
    command.arguments = {settings.program.string(), "--no-colors", "--test-case=" + name};
    command.environment = {{"FLASH_STEPS_REPORT", report_.string()},
                           {"FLASH_STEPS_DATA_SEED", std::to_string(settings.seed)},
                           {"OMP_WAIT_POLICY", "passive"}};
    command.output = output_;
    command.directory = workplace_;  // what it writes or removes is nobody's
    command.input = token_ + "\n";
    command.seconds = settings.limits.test_seconds;
    command.memory_gib = settings.limit_memory ? settings.limits.memory_gib : 0;
    child_ = std::make_unique<Child>(command);
  }
  bool ended() { return child_->ended(); }
  std::size_t index() const { return index_; }

  TestResult result() const {
    const Ended& ended = child_->result();
    TestResult result;
    if (ended.timed_out) {
      result.outcome = Outcome::timed_out;
      result.details = {fmt::format("no end after {:.0f} s", ended.seconds)};
    } else if (ended.signal) {
      result.outcome = Outcome::crashed;
      result.details = last_words(output_);
      result.details.insert(result.details.begin(), signal_text(ended.signal));
    } else {
      const std::string report = fs::is_regular_file(report_) ? read_end(report_, 1 << 20) : "";
      result = read_report(report, token_, name_);
      if (result.outcome == Outcome::passed && ended.exit_code != 0)
        result.outcome = Outcome::failed;
      if (result.outcome == Outcome::ended) {
        result.details = {
            fmt::format("the program ended by itself (exit code {}) in the middle of "
                        "the test",
                        ended.exit_code)};
      }
    }
    result.name = name_;
    result.seconds = ended.seconds;
    fs::remove_all(output_);
    fs::remove_all(report_);
    fs::remove_all(workplace_);
    return result;
  }

 private:
  std::size_t index_;
  std::string name_, token_;
  fs::path output_, report_, workplace_;
  std::unique_ptr<Child> child_;
};

}  // namespace

std::string to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed:
      return "passed";
    case Outcome::failed:
      return "failed";
    case Outcome::not_started:
      return "not started";
    case Outcome::crashed:
      return "crashed";
    case Outcome::timed_out:
      return "timed out";
    case Outcome::ended:
      return "ended early";
    case Outcome::empty:
      return "asserted nothing";
    case Outcome::skipped:
      return "skipped";
  }
  return "";
}

std::vector<TestResult> run_tests(const TestSettings& settings,
                                  const std::vector<std::string>& names,
                                  const std::function<void(const TestResult&)>& done) {
  std::vector<TestResult> results(names.size());
  std::list<RunningTest> running;
  std::size_t next = 0;
  bool stop = false;
  fs::create_directories(settings.folder);
  while (!running.empty() || (next < names.size() && !stop)) {
    if (next < names.size() && !stop &&
        running.size() < static_cast<std::size_t>(settings.jobs)) {
      running.emplace_back(settings, next, names[next]);
      ++next;
      continue;
    }
    for (auto test = running.begin(); test != running.end();) {
      if (!test->ended()) {
        ++test;
        continue;
      }
      TestResult& result = results[test->index()];
      result = test->result();
      stop = stop || result.outcome == Outcome::timed_out ||
             (settings.stop_at_failure && result.outcome != Outcome::passed);
      if (done) done(result);
      test = running.erase(test);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  results.resize(next);
  return results;
}

}  // namespace flash_steps::course

#include "common/course/check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

Verdict make_verdict(const std::string& id, State state, std::vector<std::string> lines) {
  Verdict verdict;
  verdict.id = id;
  verdict.state = state;
  verdict.lines = std::move(lines);
  return verdict;
}

// The cases of several ids, each once, in the order of the manifest.
std::vector<std::string> cases_of(const Manifest& manifest,
                                  const std::vector<std::string>& ids) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const std::string& id : ids) {
    const GradedRegion& region = manifest.region(id);
    for (const auto* list : {&region.tests, &region.traffic}) {
      for (const std::string& name : *list) {
        if (seen.insert(name).second) names.push_back(name);
      }
    }
  }
  return names;
}

std::vector<TestResult> select(const std::vector<TestResult>& results,
                               const std::vector<std::string>& names) {
  std::vector<TestResult> selected;
  for (const TestResult& result : results) {
    if (std::find(names.begin(), names.end(), result.name) != names.end())
      selected.push_back(result);
  }
  return selected;
}

Verdict judge_build(const std::string& id, const BuildResult& build) {
  if (build.timed_out) {
    return make_verdict(id, State::does_not_compile, {"the compiler did not come to an end"});
  }
  std::vector<std::string> lines = build.errors;
  if (lines.empty())
    lines = {"the build failed without an error that this program understands"};
  return make_verdict(id, State::does_not_compile, lines);
}

}  // namespace

bool gpu_is_here() {
  static const bool here = std::system("nvcc --version >/dev/null 2>&1") == 0 &&
                           std::system("nvidia-smi -L 2>/dev/null | grep -q 'GPU 0'") == 0;
  return here;
}

std::optional<Verdict> judge_text(const Answer& answer, const std::string& id) {
  if (!answer.not_started && answer.problem.empty()) return std::nullopt;
  const State state = answer.not_started ? State::not_started : State::does_not_compile;
  if (!answer.problem.empty()) {
    Verdict verdict = make_verdict(id, state, {answer.problem});
    verdict.missing = answer.not_started;
    return verdict;
  }
  return make_verdict(
      id, state, {fmt::format("its lines are to be written: {}:{}", answer.file, answer.line)});
}

Checker::Checker(const Project& project, const CheckSettings& settings)
    : project_(project), settings_(settings) {}

Scratch& Checker::scratch(const std::string& device) {
  std::unique_ptr<Scratch>& made = device == "cuda" ? cuda_ : sim_;
  if (!made) {
    (device == "cuda" ? sim_ : cuda_).reset();  // they share the sources
    made = std::make_unique<Scratch>(project_, device);
  }
  return *made;
}

void Checker::tell(const std::string& what) const {
  if (settings_.progress) settings_.progress(what);
}

std::map<std::string, Verdict> Checker::try_answers(const Answers& answers,
                                                    const std::vector<std::string>& ids,
                                                    const std::string& device,
                                                    bool stop_at_failure) {
  const Chapter& chapter = project_.manifest.chapter(ids.front().substr(0, 2));
  std::map<std::string, Verdict> verdicts;
  Scratch& here = scratch(device);
  here.put(answers);
  tell("building");
  const BuildResult build = here.build({chapter.program()});
  if (!build.ok) {
    for (const std::string& id : ids) verdicts[id] = judge_build(id, build);
    return verdicts;
  }
  const std::vector<TestResult> results =
      run_built(chapter, cases_of(project_.manifest, ids), device, stop_at_failure);
  for (const std::string& id : ids) {
    const GradedRegion& region = project_.manifest.region(id);
    Verdict& verdict = verdicts[id];
    verdict.id = id;
    verdict.tests = select(results, region.tests);
    verdict.traffic = select(results, region.traffic);
    verdict.traffic_met =
        std::all_of(verdict.traffic.begin(), verdict.traffic.end(),
                    [](const TestResult& t) { return t.outcome == Outcome::passed; }) &&
        verdict.traffic.size() == region.traffic.size();
    judge(verdict, region.tests, settings_.seed);
  }
  return verdicts;
}

std::vector<TestResult> Checker::run_built(const Chapter& chapter,
                                           const std::vector<std::string>& names,
                                           const std::string& device, bool stop_at_failure) {
  const Scratch& here = scratch(device);
  // CUDA's driver reserves more address space than any limit for tested code would allow
  const TestSettings settings{here.program(chapter.program()),
                              here.folder(),
                              settings_.seed,
                              project_.manifest.limits,
                              device == "sim",
                              settings_.jobs,
                              stop_at_failure};
  std::size_t ended = 0;
  return run_tests(settings, names, [&](const TestResult&) {
    tell(fmt::format("test {} of {}", ++ended, names.size()));
  });
}

void Checker::build(const Answers& answers, const std::vector<Chapter>& chapters) {
  std::vector<std::string> programs;
  for (const Chapter& chapter : chapters) programs.push_back(chapter.program());
  scratch("sim").put(answers);
  const BuildResult build = scratch("sim").build(programs);
  if (build.ok) return;
  throw std::runtime_error(fmt::format("{} cannot be built: {}", fmt::join(programs, ", "),
                                       build.errors.empty() ? "" : build.errors.front()));
}

void Checker::prepare(const std::vector<Chapter>& chapters) { build({}, chapters); }

std::vector<TestResult> Checker::run_cases(const Answers& answers, const Chapter& chapter,
                                           const std::vector<std::string>& names) {
  build(answers, {chapter});
  return run_built(chapter, names, "sim", false);
}

std::vector<std::string> Checker::list_cases(const Chapter& chapter) {
  prepare({chapter});
  const fs::path list = scratch("sim").folder() / "cases.txt";
  run({{scratch("sim").program(chapter.program()).string(), "--list-test-cases", "--no-colors"},
       {},
       list,
       "",
       60,
       0});
  std::vector<std::string> names;
  for (const std::string& line : split_lines(read_file(list))) {
    if (line.rfind("cpu: ", 0) == 0 || line.rfind("device: ", 0) == 0) names.push_back(line);
  }
  return names;
}

Verdict Checker::check_alone(const Submission& submission, const std::string& id) {
  const Answer& answer = submission.answers.at(id);
  if (const auto known = judge_text(answer, id)) return *known;
  const GradedRegion& region = project_.manifest.region(id);
  if (region.needs == Needs::gpu) {
    return make_verdict(
        id, State::needs_gpu,
        {"only nvcc and a GPU can tell whether it is right, and it counts only there"});
  }
  return try_answers({{id, answer}}, {id}, "sim", settings_.stop_at_failure).at(id);
}

void Checker::check_on_gpu(const Submission& submission, Verdict& verdict) {
  const GradedRegion& region = project_.manifest.region(verdict.id);
  const bool only_there = verdict.state == State::needs_gpu;
  if (region.needs == Needs::cpu || !(passes(verdict.state) || only_there)) return;
  if (!settings_.gpu) {
    if (only_there) return;
    verdict.state = State::not_on_gpu;
    verdict.lines.front() += " in the simulator";
    return;
  }
  tell("building for the GPU");
  const Verdict there = try_answers({{verdict.id, submission.answers.at(verdict.id)}},
                                    {verdict.id}, "cuda", settings_.stop_at_failure)
                            .at(verdict.id);
  verdict.state = there.state;
  verdict.lines = there.lines;
  const bool too = there.state == State::done && !only_there;
  verdict.lines.front() += too ? " on the GPU, too" : " (on the GPU)";
  if (only_there) verdict.tests = there.tests;
}

void Checker::count_points(Verdict& verdict) const {
  const GradedRegion& region = project_.manifest.region(verdict.id);
  const bool counts = region.needs != Needs::gpu || settings_.gpu;
  verdict.most_points = counts ? region.points + region.traffic_points : 0;
  if (!counts || !passes(verdict.state)) return;
  verdict.points = region.points + (verdict.traffic_met ? region.traffic_points : 0);
  if (verdict.traffic_met || region.traffic.empty()) return;
  verdict.lines.push_back(fmt::format("right, but not in its use of memory: {} of {} points",
                                      verdict.points, verdict.most_points));
  for (const TestResult& test : verdict.traffic) {
    if (test.outcome == Outcome::passed) continue;
    verdict.lines.insert(verdict.lines.end(), test.details.begin(), test.details.end());
    verdict.lines.push_back("in \"" + test.name + "\"");
  }
}

Verdict Checker::check(const Submission& submission, const std::string& id) {
  const double began = now_seconds();
  Verdict verdict = check_alone(submission, id);
  check_on_gpu(submission, verdict);
  count_points(verdict);
  verdict.seconds = now_seconds() - began;
  return verdict;
}

std::vector<Verdict> Checker::check_chapter(const Submission& submission,
                                            const Chapter& chapter,
                                            const std::function<void(const Verdict&)>& done) {
  std::vector<Verdict> verdicts;
  for (const std::string& id : chapter.ids) {
    verdicts.push_back(check(submission, id));
    if (done) done(verdicts.back());
  }
  return verdicts;
}

}  // namespace flash_steps::course

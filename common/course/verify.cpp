#include "common/course/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "common/cli/error.hpp"
#include "common/course/grade.hpp"
#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

// An answer that should lose points: a mutant, or a whole function gone wrong.
struct Wrong {
  std::string id, name, body;
};

// The files ID.what-is-wrong of a folder, for the graded ids of these chapters.
std::vector<Wrong> read_wrong(const Project& reference, const std::string& folder,
                              const std::set<std::string>& chapters) {
  std::vector<Wrong> all;
  if (!fs::is_directory(reference.root / folder)) return all;
  for (const auto& entry : fs::directory_iterator(reference.root / folder)) {
    const std::string name = entry.path().filename().string(),
                      id = name.substr(0, name.rfind('.'));
    const auto graded = reference.manifest.graded.find(id);
    if (graded == reference.manifest.graded.end() || graded->second.needs == Needs::gpu)
      continue;
    if (chapters.contains(graded->second.chapter)) {
      all.push_back({id, folder + "/" + name, read_file(entry.path())});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Wrong& a, const Wrong& b) { return a.name < b.name; });
  return all;
}

class Verifier {
 public:
  Verifier(const Project& reference, const VerifySettings& settings)
      : reference_(reference), settings_(settings), checker_(reference, settings.check) {}

  bool run() {
    texts();
    for (const Chapter& chapter : reference_.manifest.chapters) {
      if (settings_.chapters.contains(chapter.number) && !chapter.ids.empty())
        verify_chapter(chapter);
    }
    fmt::print("{} of {} hold, {:.0f} s; data of seed {}\n", held_, held_ + broken_,
               now_seconds() - began_, settings_.check.seed);
    return broken_ == 0;
  }

 private:
  void say(bool good, const std::string& what) {
    ++(good ? held_ : broken_);
    fmt::print("{}  {}\n", good ? "ok" : "NO", what);
    std::fflush(stdout);
  }

  void texts() {
    const std::vector<std::string> problems = verify_texts(reference_);
    for (const std::string& problem : problems) say(false, problem);
    if (problems.empty()) {
      say(true,
          fmt::format(
              "{} graded ids: tests and hints are there, the starter has no solution, every "
              "id is not started, re-inserting gives the reference",
              reference_.manifest.graded.size()));
    }
  }

  Answer answer(const std::string& id, const std::string& body) const {
    const Region& region = reference_.regions.at(id);
    return {region.file, region.begin, body, "", false};
  }

  void verify_chapter(const Chapter& chapter) {
    full_marks(chapter);
    starter_fails(chapter);
    const std::vector<std::string> ids = chosen(chapter);
    if (ids.empty()) return;
    for (const std::string& id : ids) blank(id);
    int count = 0;
    std::map<std::string, int> tried;
    for (const char* folder : {"tests/mutants", "tests/course/wrong"}) {
      for (const Wrong& wrong : read_wrong(reference_, folder, {chapter.number})) {
        const bool wanted = std::find(ids.begin(), ids.end(), wrong.id) != ids.end();
        if (!wanted || (settings_.reduced && tried[wrong.id]++ > 0)) continue;
        loses_points(wrong);
        ++count;
      }
    }
    if (!settings_.reduced && settings_.ids.empty() && count < 3) {
      say(false,
          fmt::format("chapter {} has {} wrong answers, less than 3", chapter.number, count));
    }
    for (const std::string& id : ids) {
      if (reference_.manifest.region(id).stub.find('{') != std::string::npos) continue;
      accidents(id);  // a statement in front of its lines is one of a function
      break;
    }
  }

  // All ids, or one for C++ and one for CUDA.
  std::vector<std::string> chosen(const Chapter& chapter) const {
    std::vector<std::string> ids;
    std::set<Needs> seen;
    for (const std::string& id : chapter.ids) {
      const Needs needs = reference_.manifest.region(id).needs;
      const auto& only = settings_.ids;
      if (!only.empty() && std::find(only.begin(), only.end(), id) == only.end()) continue;
      if (needs == Needs::gpu || (settings_.reduced && !seen.insert(needs).second)) continue;
      ids.push_back(id);
    }
    return ids;
  }

  void full_marks(const Chapter& chapter) {
    const Submission submission = read_submission(reference_, reference_.root);
    int points = 0, most = 0;
    for (const Verdict& verdict : checker_.check_chapter(submission, chapter)) {
      points += verdict.points;
      most += verdict.most_points;
      if (verdict.points == verdict.most_points) continue;
      say(false, fmt::format("{} of the reference: {}, {}", verdict.id,
                             to_string(verdict.state), verdict.lines.front()));
    }
    say(points == most, fmt::format("chapter {}: the reference earns {} of {} points",
                                    chapter.number, points, most));
  }

  // The starter's lines compile, all of them together, and no case of a graded id passes.
  void starter_fails(const Chapter& chapter) {
    Checker::Answers answers;
    std::vector<std::string> ids;
    for (const std::string& id : chapter.ids) {
      if (reference_.manifest.region(id).needs == Needs::gpu) continue;
      answers[id] = answer(id, reference_.stub_body(id));
      ids.push_back(id);
    }
    int passing = 0, total = 0;
    bool builds = true;
    for (const auto& [id, verdict] : checker_.try_answers(answers, ids, "sim")) {
      builds = builds && verdict.state != State::does_not_compile;
      for (const TestResult& test : verdict.tests) {
        ++total;
        passing += test.outcome == Outcome::passed;
        if (test.outcome == Outcome::passed) say(false, id + " passes unwritten: " + test.name);
      }
    }
    say(builds && passing == 0,
        fmt::format(
            "chapter {}: the starter builds, and none of the {} tests of its ids passes",
            chapter.number, total));
  }

  // Every test of an id notices when its lines are missing.
  void blank(const std::string& id) {
    const Verdict verdict =
        checker_.try_answers({{id, answer(id, reference_.stub_body(id))}}, {id}, "sim").at(id);
    int passing = 0;
    for (const auto* list : {&verdict.tests, &verdict.traffic}) {
      for (const TestResult& test : *list) {
        passing += test.outcome == Outcome::passed;
        if (test.outcome == Outcome::passed) say(false, id + " left out passes: " + test.name);
      }
    }
    say(passing == 0 && !verdict.tests.empty(),
        fmt::format("{} left out: all its {} tests fail", id, verdict.tests.size()));
  }

  void loses_points(const Wrong& wrong) {
    Submission submission;
    submission.answers[wrong.id] = answer(wrong.id, wrong.body);
    const Verdict verdict = checker_.check(submission, wrong.id);
    say(verdict.points < verdict.most_points,
        fmt::format("{}: {} of {} points, {}", wrong.name, verdict.points, verdict.most_points,
                    to_string(verdict.state)));
  }

  // What goes wrong by accident is told apart.
  void accidents(const std::string& id) {
    const std::map<std::string, State> accidents{
        {"  syntax error here;\n", State::does_not_compile},
        {"  *static_cast<volatile int*>(nullptr) = 1;\n", State::crashed},
        {"  std::_Exit(0);\n", State::crashed},
        {"  for (volatile int i = 0;; i = i + 1) {}\n", State::timed_out}};
    for (const auto& [body, state] : accidents) {
      if (settings_.reduced && state == State::timed_out) continue;  // takes its time
      const std::string whole = body + reference_.regions.at(id).body;
      Submission submission;
      submission.answers[id] = answer(id, whole);
      const Verdict verdict = checker_.check(submission, id);
      say(verdict.state == state && verdict.points == 0,
          fmt::format("{} beginning with \"{}\": {}", id, trimmed(body),
                      to_string(verdict.state)));
    }
  }

  const Project& reference_;
  VerifySettings settings_;
  Checker checker_;
  int held_ = 0, broken_ = 0;
  double began_ = now_seconds();
};

}  // namespace

bool verify(const Project& reference, const VerifySettings& settings) {
  if (reference.is_starter)
    throw cli::UsageError("verify is for the reference, and this is a starter");
  return Verifier(reference, settings).run();
}

}  // namespace flash_steps::course

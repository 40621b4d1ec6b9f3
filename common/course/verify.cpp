#include "common/course/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "common/cli/error.hpp"
#include "common/course/grade.hpp"
#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

// An answer that should lose points: a mutant, or a whole function gone wrong.
struct Wrong {
  std::string id, name, body;
};

// Every mutant and every other wrong answer to a graded id of this chapter, from the files
// ID.what-is-wrong of two folders.
std::vector<Wrong> read_wrong(const Project& reference, const Chapter& chapter) {
  std::vector<Wrong> all;
  for (const std::string folder : {"tests/course/wrong", "tests/mutants"}) {
    if (!fs::is_directory(reference.root / folder)) continue;
    for (const auto& entry : fs::directory_iterator(reference.root / folder)) {
      const std::string name = entry.path().filename().string(),
                        id = name.substr(0, name.rfind('.'));
      if (std::find(chapter.ids.begin(), chapter.ids.end(), id) == chapter.ids.end()) continue;
      if (reference.manifest.region(id).needs == Needs::gpu) continue;
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
      : reference_(reference),
        settings_(settings),
        checker_(reference, settings.check),
        random_(settings.check.seed) {}

  // From the last chapter to the first: a chapter needs those before it, which are then still
  // the reference, and what was tried in it last need not be taken back.
  bool run() {
    fmt::print("the same again: course verify{} --seed {}\n",
               settings_.reduced ? " --reduced" : "", settings_.check.seed);
    texts();
    std::vector<Chapter> chapters;
    for (const Chapter& chapter : reference_.manifest.chapters) {
      if (settings_.chapters.contains(chapter.number) && !chapter.ids.empty())
        chapters.insert(chapters.begin(), chapter);
    }
    // the texts were checked of all chapters; built and run are half of them
    const std::size_t most = settings_.reduced ? (chapters.size() + 1) / 2 : chapters.size();
    while (chapters.size() > most) {
      chapters.erase(chapters.begin() +
                     static_cast<std::ptrdiff_t>(random_() % chapters.size()));
    }
    checker_.prepare(chapters);
    const std::size_t with_accidents = random_() % chapters.size();
    for (std::size_t i = 0; i < chapters.size(); ++i)
      verify_chapter(chapters[i], !settings_.reduced || i == with_accidents);
    fmt::print("{} of {} hold, {:.0f} s; seed {}\n", held_, held_ + broken_,
               now_seconds() - began_, settings_.check.seed);
    return broken_ == 0;
  }

 private:
  void say(bool good, const std::string& what) {
    ++(good ? held_ : broken_);
    fmt::print("{}  {}\n", good ? "ok" : "NO", what);
    std::fflush(stdout);
  }

  // What building shows nothing about.
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
    count_wrong();
  }

  void count_wrong() {
    std::size_t all = 0, functions = 0, fewest = SIZE_MAX;
    for (const Chapter& chapter : reference_.manifest.chapters) {
      const std::vector<Wrong> wrong_answers = read_wrong(reference_, chapter);
      all += wrong_answers.size();
      fewest = std::min(fewest, wrong_answers.size());
      for (const Wrong& wrong : wrong_answers) functions += is_function(wrong.id);
    }
    say(all >= 40 && functions >= 10 && fewest >= 3,
        fmt::format("{} wrong answers, {} of them whole functions, at least {} for a chapter",
                    all, functions, fewest));
  }

  bool is_function(const std::string& id) const {
    return reference_.manifest.region(id).stub.find('{') != std::string::npos;
  }

  Answer answer(const std::string& id, const std::string& body) const {
    const Region& region = reference_.regions.at(id);
    return {region.file, region.begin, body, "", false};
  }

  void verify_chapter(const Chapter& chapter, bool with_accidents) {
    full_marks(chapter);
    const std::vector<std::string> ids = chosen(chapter);
    const std::vector<Wrong> wrong_answers = chosen(read_wrong(reference_, chapter), ids);
    for (const Wrong& wrong : wrong_answers) loses_points(wrong);
    for (const std::string& id : ids) blank(id);
    // a statement in front of its lines is one of a function
    const auto id = std::find_if(ids.begin(), ids.end(),
                                 [&](const std::string& one) { return !is_function(one); });
    if (with_accidents && id != ids.end()) accidents(*id);
    starter_fails(chapter);
  }

  // All ids that are asked for, or a random one of them.
  std::vector<std::string> chosen(const Chapter& chapter) {
    std::vector<std::string> ids;
    for (const std::string& id : chapter.ids) {
      const auto& only = settings_.ids;
      if (!only.empty() && std::find(only.begin(), only.end(), id) == only.end()) continue;
      if (reference_.manifest.region(id).needs != Needs::gpu) ids.push_back(id);
    }
    return sample(ids);
  }

  // Those to these ids, or a random one of them.
  std::vector<Wrong> chosen(const std::vector<Wrong>& all,
                            const std::vector<std::string>& ids) {
    std::vector<Wrong> wrong_answers;
    for (const Wrong& wrong : all) {
      if (std::find(ids.begin(), ids.end(), wrong.id) != ids.end())
        wrong_answers.push_back(wrong);
    }
    return sample(wrong_answers);
  }

  template <class T>
  std::vector<T> sample(const std::vector<T>& all) {
    if (!settings_.reduced || all.empty()) return all;
    return {all[random_() % all.size()]};
  }

  // Whatever the other chapters are like: in this submission they are not even begun.
  void full_marks(const Chapter& chapter) {
    Submission submission = read_submission(reference_, reference_.root);
    for (auto& [id, answer] : submission.answers) {
      answer.not_started = reference_.manifest.region(id).chapter != chapter.number;
    }
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
    // one that does not compile says nothing about the tests
    const bool compiles = verdict.state != State::does_not_compile;
    say(compiles && verdict.points < verdict.most_points,
        fmt::format("{}: {} of {} points, {}{}", wrong.name, verdict.points,
                    verdict.most_points, to_string(verdict.state),
                    compiles ? "" : ": " + verdict.lines.front()));
  }

  // What goes wrong by accident is told apart.
  void accidents(const std::string& id) {
    const std::map<std::string, State> accidents{
        {"  syntax error here;\n", State::does_not_compile},
        {"  *static_cast<volatile int*>(nullptr) = 1;\n", State::crashed},
        {"  std::_Exit(0);\n", State::crashed},
        // one that may stand in a constexpr function
        {"  for (bool first = true;; first = false) if (!first) asm volatile(\"\");\n",
         State::timed_out}};
    for (const auto& [body, state] : accidents) {
      if (settings_.reduced && state == State::timed_out) continue;  // takes half a minute
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
  std::mt19937_64 random_;
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

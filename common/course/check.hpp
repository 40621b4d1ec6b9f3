// From answers to verdicts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/course/scratch.hpp"
#include "common/course/verdict.hpp"

namespace flash_steps::course {

struct CheckSettings {
  std::uint64_t seed = 0;
  int jobs = 1;
  bool gpu = false;                                  // run device code on a GPU, too
  bool stop_at_failure = false;                      // one failing test is enough to know
  std::function<void(const std::string&)> progress;  // "building", "test 3 of 12", ...
};

// Whether nvcc and a GPU are here.
bool gpu_is_here();

class Checker {
 public:
  Checker(const Project& project, const CheckSettings& settings);

  // One id, everything else being the reference.
  Verdict check(const Submission& submission, const std::string& id);

  // All graded ids of a chapter, each by itself: no answer is blamed for another, and none is
  // right only beside another. `done` is called with each verdict.
  std::vector<Verdict> check_chapter(const Submission& submission, const Chapter& chapter,
                                     const std::function<void(const Verdict&)>& done = {});

  // The tests of these ids, all of one chapter, with these answers in place, whatever they look
  // like: by id; the same for all of them if the answers do not compile.
  using Answers = std::map<std::string, Answer>;
  std::map<std::string, Verdict> try_answers(const Answers& answers,
                                             const std::vector<std::string>& ids,
                                             const std::string& device,
                                             bool stop_at_failure = false);

  // Builds test programs of the reference for the simulator, so that less is left to do for an
  // answer. Throws std::runtime_error if one does not compile, as do the next two.
  void prepare(const std::vector<Chapter>& chapters);

  // The cases of a chapter's test program, and these of them with these answers in place.
  std::vector<std::string> list_cases(const Chapter& chapter);
  std::vector<TestResult> run_cases(const Answers& answers, const Chapter& chapter,
                                    const std::vector<std::string>& names);

 private:
  std::vector<TestResult> run_built(const Chapter& chapter,
                                    const std::vector<std::string>& names,
                                    const std::string& device, bool stop_at_failure);
  Verdict check_alone(const Submission& submission, const std::string& id);
  void check_on_gpu(const Submission& submission, Verdict& verdict);
  void count_points(Verdict& verdict) const;
  void tell(const std::string& what) const;
  Scratch& scratch(const std::string& device);
  void build(const Answers& answers, const std::vector<Chapter>& chapters);

  const Project& project_;
  CheckSettings settings_;
  std::unique_ptr<Scratch> sim_, cuda_;
};

// What is known without building: not started, or lines that cannot stand there. Else nothing.
std::optional<Verdict> judge_text(const Answer& answer, const std::string& id);

}  // namespace flash_steps::course

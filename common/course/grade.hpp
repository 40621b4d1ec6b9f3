// Grading: a submission, or a folder of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/course/check.hpp"

namespace flash_steps::course {

struct Grade {
  std::string submission;
  std::uint64_t seed = 0;
  std::vector<Verdict> verdicts;  // of every graded id, in the manifest's order
  std::vector<std::string> changed_outside;
  double seconds = 0;
  int points() const;
  int most_points() const;
};

// Nothing is graded yet: every id has 0 points of what it can have, and `why`.
Grade start_grade(const Project& project, const std::string& name,
                  const CheckSettings& settings,
                  const std::string& why = "the grading did not come to it");

// Grades the chapters, from the last to the first: what is built for one is not built again for
// another. `so_far` is called after each id, with all verdicts there are.
Grade grade(const Project& project, const Submission& submission, const CheckSettings& settings,
            const std::function<void(const Grade&)>& so_far = {});

// What `directory` holds: itself, if files of the exercises lie in it, else all its folders,
// for one that lacks them gets its 0 points, too. UsageError if all of them lack them.
std::vector<fs::path> find_submissions(const Project& project, const fs::path& directory);

}  // namespace flash_steps::course

// What a grading service runs.
#pragma once

#include <set>
#include <string>

#include "common/course/project.hpp"

namespace flash_steps::course {

// An archive for Gradescope: setup.sh and run_autograder, and the starter as project/, from
// which everything but the answers is taken.
std::string gradescope_archive(const Project& reference, const std::set<std::string>& chapters);

// A workflow for GitHub Actions that grades a repository against the starter in another one,
// "owner/name".
std::string github_workflow(const Project& reference, const std::string& repository);

}  // namespace flash_steps::course

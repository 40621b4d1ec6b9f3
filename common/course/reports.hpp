// A grade in the forms that others read.
#pragma once

#include <string>
#include <vector>

#include "common/course/grade.hpp"

namespace flash_steps::course {

// Of one submission, or of several as an array.
std::string to_json(const std::vector<Grade>& grades);

// JUnit's XML: a suite for each submission, a case for each test of each id. An id that was
// never run (not started, does not compile) has one case of its own, which fails.
std::string to_junit(const std::vector<Grade>& grades);

// A line for each submission: name, points, most points, then the points of each id.
std::string to_csv(const std::vector<Grade>& grades);

// Gradescope's results.json: a test for each id, and a leaderboard.
std::string to_gradescope(const Project& project, const Grade& grade);

// For a terminal: a line for each id, what to look at below it, the sum at the end.
std::string to_text(const Grade& grade);

}  // namespace flash_steps::course

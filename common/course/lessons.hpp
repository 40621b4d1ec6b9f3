// Pages for students: the project's pages without the solutions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/course/project.hpp"

namespace flash_steps::course {

// A Markdown page as a student gets it. A listing that quotes a graded region gives way to a
// pointer to where its lines are to be written; a lesson ends with a table of its exercises.
// Links to what is not handed out become text.
std::string student_page(const Project& project, const std::string& file,
                         const std::string& text, const std::set<std::string>& handed_out);

// The hints for an id in a chapter's hints.md: the items of the list below "## ID".
std::vector<std::string> parse_hints(const std::string& page, const std::string& id);

// TeX's notation, as far as hints use it, for a terminal: "$e^{m - m'}$" as "e^(m - m')".
std::string plain_maths(std::string text);

// Where the hints of an id are: "chapters/04_causal_skipping/hints.md".
std::string hints_file(const Manifest& manifest, const std::string& id);

}  // namespace flash_steps::course

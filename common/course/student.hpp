// The starter of a homework: a project of its own, made from the reference.
#pragma once

#include <map>
#include <set>
#include <string>

#include "common/course/project.hpp"

namespace flash_steps::course {

// "1-6", "3,5" or "4" as {"01", ...}. UsageError for anything else.
std::set<std::string> parse_chapters(const std::string& text);

// All files of the starter (path -> text) with these graded chapters. Earlier chapters, which
// they build on, come along as they are, with their solutions.
std::map<std::string, std::string> make_starter(const Project& reference,
                                                const std::set<std::string>& chapters);

// Writes the starter into `out`, which must not exist or be empty; UsageError if not.
void write_starter(const Project& reference, const std::map<std::string, std::string>& files,
                   const fs::path& out);

}  // namespace flash_steps::course

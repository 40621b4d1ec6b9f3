// Marked regions: the lines of a chapter's sources between
//
//   // [begin 04.visible-keys]
//   // [end]
//
// Lessons quote them, mutants replace them, and a homework leaves them out. The rules are those
// of tests/mutants/run_common.sh, which checks the same marks.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace flash_steps::course {

struct Region {
  std::string id, file;    // the file as a path below the project
  int begin = 0, end = 0;  // the lines of its two marks, counted from 1
  std::string body;        // the lines between, each with its end
};

// What is wrong with the marks: "FILE:LINE: what".
struct Problem {
  std::string file;
  int line;
  std::string what;
  std::string text() const { return file + ":" + std::to_string(line) + ": " + what; }
};

// The regions of one file, in order. Nested, unclosed and misplaced marks become problems.
std::vector<Region> scan_text(const std::string& file, const std::string& text,
                              std::vector<Problem>& problems);

// The regions of several files (path -> text), by id. An id that is there twice is a problem.
std::map<std::string, Region> scan_texts(const std::map<std::string, std::string>& texts,
                                         std::vector<Problem>& problems);

// Whether regions may stand in this file: C++ and CUDA sources of chapters.
bool may_have_regions(const std::string& file);

// `text` with other bodies (id -> body) in the place of its own.
std::string replace_bodies(const std::string& file, const std::string& text,
                           const std::map<std::string, std::string>& bodies);

// What the lines of a body have in common at their beginning: blanks.
std::string indentation(const std::string& body);

}  // namespace flash_steps::course

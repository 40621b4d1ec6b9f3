// The tree that `course` works in: the reference, where the lines between the marks are the
// solution, or a starter that was made from it, where they are the student's and the solutions
// lie packed in .course/solutions.json.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/course/manifest.hpp"
#include "common/course/regions.hpp"

namespace flash_steps::course {

struct Project {
  fs::path root;
  bool is_starter = false;
  std::string manifest_json;
  Manifest manifest;
  std::vector<std::string> files;  // all that was handed out, sorted
  std::map<std::string, std::string>
      texts;  // of the files with regions, as the reference has them
  std::map<std::string, std::string> hints;     // pages that are packed, too; a starter's only
  std::map<std::string, Region> regions;        // of those texts, by id
  std::map<std::string, std::uint64_t> hashes;  // of what was handed out; a starter's only

  // The lines that a student finds in the place of this region's.
  std::string stub_body(const std::string& id) const;
  // The file with stubs in the place of all graded regions.
  std::string starter_text(const std::string& file) const;
  // The file as it is in the reference.
  std::string reference_text(const std::string& file) const;
  fs::path scratch() const { return root / "build" / "course"; }
};

// The number of the chapter that a file belongs to, "" if to none; tests/04_causal_skipping.cpp
// is of 04.
std::string chapter_of(const std::string& file);

// The text of chapters/CMakeLists.txt with the add_chapter lines of these chapters only.
std::string keep_chapters(const std::string& text, const std::set<std::string>& chapters);

// Reads the tree at `root`. Throws std::runtime_error if its marks are wrong or do not fit the
// manifest, after printing each problem as FILE:LINE: WHAT on stderr.
Project load_project(const fs::path& root);

// The nearest directory from `start` upwards that has a chapters/course.json. UsageError if
// none.
fs::path find_project(const fs::path& start);

// .course/solutions.json of a starter: reference texts of the files with graded regions, their
// hints, and hashes of everything that is handed out (path -> text).
std::string pack(const Project& reference,
                 const std::map<std::string, std::string>& handed_out);

}  // namespace flash_steps::course

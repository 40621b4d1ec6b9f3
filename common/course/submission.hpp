// What a student wrote: the lines of each graded region, taken out of a directory. Nothing else
// of it is looked at.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/course/project.hpp"

namespace flash_steps::course {

struct Answer {
  std::string file;  // below the project
  int line = 0;      // of the begin mark; 0 if the region was not found
  std::string body;
  std::string problem;       // "FILE:LINE: ..." why there is no body that could be compiled
  bool not_started = false;  // the file is missing, or nothing but a todo() is there
};

struct Submission {
  std::string name;
  std::map<std::string, Answer> answers;  // of every graded id
  // FILE:LINE of lines outside the marks that differ from what was handed out, and files in
  // tests/ and common/ that do. They do not count.
  std::vector<std::string> changed_outside;
};

// Reads the answers below `directory`, laid out as the project is.
Submission read_submission(const Project& project, const fs::path& directory);

// Whether one of the files with exercises lies in this directory.
bool holds_answers(const Project& project, const fs::path& directory);

// The directory at or below `start` that holds chapters/: students zip their folder, or what is
// in it. `start` if there is none, or more than one.
fs::path find_submission(const fs::path& start);

}  // namespace flash_steps::course

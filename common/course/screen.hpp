// What the student sees: plain text, coloured on a terminal.
#pragma once

#include <string>

#include "common/course/progress.hpp"

namespace flash_steps::course {

class Screen {
 public:
  explicit Screen(const Project& project);  // colours if stdout is a terminal that has them

  // A verdict: one line, and below it what helps. As one of several: no more than what is
  // wrong.
  std::string verdict(const Verdict& verdict, bool one_of_several = false) const;
  // Progress bar, chapters, states.
  std::string list(const Submission& submission, const Progress& progress) const;
  // What to do now: which file and line, what to read, how to check it.
  // The first exercise that is open; of one chapter only, if its number is given.
  std::string next(const Submission& submission, const Progress& progress,
                   const std::string& chapter = "") const;
  // That about one id.
  std::string task(const Submission& submission, const std::string& id) const;

 private:
  std::string painted(State state, const std::string& text) const;
  const Project& project_;
  bool colours_ = false;
};

// The first id, of this chapter if one is given, that does not pass; "" if all do.
std::string first_open(const Project& project, const Submission& submission,
                       const Progress& progress, const std::string& chapter = "");

// What to do about a verdict, in a sentence; "" where there is nothing to do.
std::string advice(const Verdict& verdict);

}  // namespace flash_steps::course

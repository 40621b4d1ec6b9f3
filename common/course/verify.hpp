// `course verify`: the kit proves itself.
#pragma once

#include <set>
#include <string>

#include "common/course/check.hpp"

namespace flash_steps::course {

struct VerifySettings {
  CheckSettings check;
  std::set<std::string> chapters;  // to build and run; what is text alone is verified for all
  std::vector<std::string> ids;    // only these, if any are named
  bool reduced = false;            // of what is tried by itself a sample, drawn by the seed
};

// Prints a line for each thing that is verified. False if something does not hold. Of every
// chapter, the reference earns full marks, and the starter builds and passes no test; of every
// id, its tests all fail without its lines, and no wrong answer to it earns its points.
// Reduced, it is half of the chapters that are built and run, one id of each and one wrong
// answer to it that are tried by themselves, and the accidents are those of one chapter.
bool verify(const Project& reference, const VerifySettings& settings);

// The part that builds nothing: problems, as sentences.
//
//   every chapter has graded ids for C++ and for CUDA, each with tests that are there and with
//   three hints re-inserting the solutions into the starter gives the reference, byte by byte
//   no line of a solution is left in the starter's sources and pages
//   in the starter every id is not started
std::vector<std::string> verify_texts(const Project& reference);

}  // namespace flash_steps::course

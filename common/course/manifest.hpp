// chapters/course.json: which regions are graded, for how many points, by which tests.
//
//   {"limits": {"test_seconds": 30, "build_seconds": 300, "memory_gib": 8},
//    "leave_out": ["tests/mutants", ...],        of what a starter does not get
//    "chapters": [
//      {"directory": "04_causal_skipping", "title": "...",
//       "regions": {
//         "04.visible-keys": {"points": 2, "needs": "cpu", "todo": "How many ...",
//                             "stub": "return todo(\"04.visible-keys\");"},
//         "04.shown": "given"},                  in the starter as it is, not graded
//       "tests": {"cpu: every ragged size ...": ["04.visible-keys", ...]},
//       "traffic": {"points": 1, "tests": {"device: hidden tiles ...": ["04.walk-cuda"]}}}]}
//
// `needs`: cpu; sim: device code, which the simulator runs; gpu: nvcc and a GPU, not graded
// without them. `stub` is what stands in the place of the lines, todo("ID"); without it.
// `tests` says for each case of the chapter's test program which ids it belongs to; an id has
// its points if all of its cases pass. `traffic` names cases that count the bytes which a
// kernel moves: points on top, for the ids that pass.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/course/files.hpp"

namespace flash_steps::course {

enum class Needs { cpu, sim, gpu };
std::string to_string(Needs needs);

struct GradedRegion {
  std::string id;       // "04.visible-keys"
  std::string chapter;  // "04"
  int points = 0, traffic_points = 0;
  Needs needs = Needs::cpu;
  std::string todo, stub;                   // one line each; the stub may have several
  std::vector<std::string> tests, traffic;  // names of cases, in the program's order
};

struct Chapter {
  std::string number, directory, title;
  std::vector<std::string> ids;  // graded, in the order in which they are to be done
  std::string program() const { return directory + "_test"; }
};

struct Limits {
  double test_seconds = 30, build_seconds = 300;
  int memory_gib = 8;
};

struct Manifest {
  Limits limits;
  std::vector<std::string> leave_out;
  std::vector<Chapter> chapters;
  std::map<std::string, GradedRegion> graded;
  std::set<std::string> given;  // regions that stay as they are

  const Chapter& chapter(const std::string& number) const;  // UsageError if there is none
  const GradedRegion& region(const std::string& id) const;  // likewise
  std::vector<std::string> ids() const;                     // all graded, in order
  std::set<std::string> numbers() const;                    // of the chapters
};

// Throws std::runtime_error for a manifest that is not as above, naming the entry.
Manifest parse_manifest(const std::string& json);

// The same manifest for these chapters only, as JSON; the regions of chapters in `given` are
// all given.
std::string filter_manifest(const std::string& json, const std::set<std::string>& chapters,
                            const std::set<std::string>& given);

}  // namespace flash_steps::course

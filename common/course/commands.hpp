// The commands of `course`, each with what was given on the command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/course/check.hpp"

namespace flash_steps::course {

// What several commands take.
struct CommonArguments {
  std::string root;                   // of the project; empty: found from where one is
  std::optional<std::uint64_t> seed;  // of the data; a fresh one without it
  int jobs = 0;                       // 0: as many as processors
  bool no_gpu = false;
};
CheckSettings settings_of(const CommonArguments& arguments);
Project open_project(const CommonArguments& arguments);

// For students.
void command_next(const CommonArguments& common, const std::string& chapter);
void command_list(const CommonArguments& common);
// `what`: ids and chapters; empty: all chapters. False if something does not pass.
bool command_check(const CommonArguments& common, const std::vector<std::string>& what);
void command_watch(const CommonArguments& common, const std::string& id);
void command_hint(const CommonArguments& common, const std::string& id);
void command_reset(const CommonArguments& common, const std::string& id);
void command_solution(const CommonArguments& common, const std::string& id);

// For instructors.
void command_make_student(const CommonArguments& common, const std::string& chapters,
                          const std::string& out);
void command_make_autograder(const CommonArguments& common, const std::string& service,
                             const std::string& chapters, const std::string& repository,
                             const std::string& out);
// Builds what does not depend on a submission.
void command_prepare(const CommonArguments& common);
bool command_verify(const CommonArguments& common, const std::string& chapters,
                    const std::vector<std::string>& ids, bool reduced);
struct GradeArguments {
  std::string directory, format, out;
};
void command_grade(const CommonArguments& common, const GradeArguments& arguments);

// For those who change the course: once the reference passes all of them, the "tests" of a
// chapter for course.json, found by leaving out each graded region in turn and looking which
// cases fail.
void command_learn(const CommonArguments& common, const std::string& chapter);

}  // namespace flash_steps::course

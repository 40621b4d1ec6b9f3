// The commands for instructors.
#include <fmt/format.h>

#include <cstdio>

#include "common/cli/error.hpp"
#include "common/course/autograder.hpp"
#include "common/course/commands.hpp"
#include "common/course/process.hpp"
#include "common/course/reports.hpp"
#include "common/course/student.hpp"
#include "common/course/verify.hpp"

namespace flash_steps::course {
namespace {

std::string formatted(const Project& project, const std::vector<Grade>& grades,
                      const std::string& format) {
  if (format == "json") return to_json(grades);
  if (format == "junit") return to_junit(grades);
  if (format == "csv") return to_csv(grades);
  if (format == "gradescope") return to_gradescope(project, grades.front());
  std::string text;
  for (const Grade& grade : grades) text += to_text(grade);
  return text;
}

std::string all_chapters(const Project& project) {
  return project.manifest.chapters.front().number + "-" +
         project.manifest.chapters.back().number;
}

std::set<std::string> chapters_or_all(const Project& project, const std::string& text) {
  return text.empty() ? project.manifest.numbers() : parse_chapters(text);
}

// A service must get a result whatever was handed in; people get an error for a folder that
// holds no submission.
std::vector<fs::path> submissions_in(const Project& project, const GradeArguments& arguments) {
  if (arguments.format == "gradescope") return {arguments.directory};
  return find_submissions(project, arguments.directory);
}

std::string name_of(const fs::path& path) {
  return fs::absolute(path / ".").lexically_normal().parent_path().filename().string();
}

Submission open_submission(const Project& project, const fs::path& path) {
  Submission submission = read_submission(project, find_submission(path));
  submission.name = name_of(path);
  return submission;
}

}  // namespace

void command_make_student(const CommonArguments& common, const std::string& chapters,
                          const std::string& out) {
  const Project project = open_project(common);
  const auto files = make_starter(project, chapters_or_all(project, chapters));
  write_starter(project, files, out);
  fmt::print("{}: {} files, chapters {}. Its README.md is for students.\n", out, files.size(),
             chapters.empty() ? all_chapters(project) : chapters);
}

void command_make_autograder(const CommonArguments& common, const std::string& service,
                             const std::string& chapters, const std::string& repository,
                             const std::string& out) {
  const Project project = open_project(common);
  if (service == "gradescope") {
    write_file(out, gradescope_archive(project, chapters_or_all(project, chapters)));
  } else if (service == "github-actions") {
    write_file(out, github_workflow(project, repository));
  } else {
    throw cli::UsageError("for which service? --gradescope or --github-actions");
  }
  fmt::print("{} is written; docs/teaching.md says what to do with it.\n", out);
}

void command_prepare(const CommonArguments& common) {
  const Project project = open_project(common);
  Checker checker(project, settings_of(common));
  for (const Chapter& chapter : project.manifest.chapters) {
    fmt::print("{} ... ", chapter.directory);
    std::fflush(stdout);
    const double began = now_seconds();
    checker.prepare({chapter});
    fmt::print("{:.0f} s\n", now_seconds() - began);
  }
}

bool command_verify(const CommonArguments& common, const std::string& chapters,
                    const std::vector<std::string>& ids, bool reduced) {
  const Project project = open_project(common);
  VerifySettings settings{settings_of(common), chapters_or_all(project, chapters), ids,
                          reduced};
  for (const std::string& id : ids) project.manifest.region(id);
  if (!ids.empty()) settings.chapters.clear();
  for (const std::string& id : ids) settings.chapters.insert(id.substr(0, 2));
  settings.check.gpu = false;
  settings.check.stop_at_failure = true;
  return verify(project, settings);
}

void command_grade(const CommonArguments& common, const GradeArguments& arguments) {
  const Project project = open_project(common);
  const CheckSettings settings = settings_of(common);
  std::vector<Grade> grades;
  // what there is so far is written at once, so that nothing earned is lost to a later crash
  const auto write = [&] {
    if (!arguments.out.empty()) {
      write_file(arguments.out, formatted(project, grades, arguments.format));
    }
  };
  for (const fs::path& path : submissions_in(project, arguments)) {
    grades.push_back(start_grade(project, name_of(path), settings));
    write();
    try {
      grade(project, open_submission(project, path), settings, [&](const Grade& so_far) {
        grades.back() = so_far;
        write();
      });
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      // whatever it is, it costs the others nothing
      grades.back() = start_grade(project, name_of(path), settings, error.what());
      write();
    }
    fmt::print(stderr, "{}: {} of {} points, seed {}, {:.0f} s\n", name_of(path),
               grades.back().points(), grades.back().most_points(), settings.seed,
               grades.back().seconds);
  }
  const std::string shown = arguments.out.empty() ? arguments.format : "text";
  fmt::print("{}", formatted(project, grades, shown));
}

void command_learn(const CommonArguments& common, const std::string& number) {
  const Project project = open_project(common);
  const Chapter& chapter = project.manifest.chapter(number);
  Checker checker(project, settings_of(common));
  std::map<std::string, std::vector<std::string>> ids;  // of each case
  const std::vector<std::string> cases = checker.list_cases(chapter);
  for (const TestResult& result : checker.run_cases({}, chapter, cases)) {
    if (result.outcome == Outcome::passed) continue;
    throw std::runtime_error("the reference itself does not pass \"" + result.name + "\"");
  }
  for (const std::string& id : chapter.ids) {
    if (project.manifest.region(id).needs == Needs::gpu) continue;
    Answer blank{project.regions.at(id).file, project.regions.at(id).begin,
                 project.stub_body(id), "", true};
    for (const TestResult& result : checker.run_cases({{id, blank}}, chapter, cases)) {
      if (result.outcome != Outcome::passed) ids[result.name].push_back(id);
    }
    fmt::print(stderr, "\r\033[K{}\n", id);
  }
  std::string json;
  for (const std::string& name : cases) {
    if (!ids.contains(name)) continue;
    json += fmt::format("{}    \"{}\": [", json.empty() ? "" : ",\n", name);
    for (const std::string& id : ids[name])
      json += fmt::format("{}\"{}\"", json.back() == '[' ? "" : ", ", id);
    json += "]";
  }
  fmt::print("{}\n", json);
}

}  // namespace flash_steps::course

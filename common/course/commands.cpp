#include "common/course/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "common/cli/error.hpp"
#include "common/course/screen.hpp"
#include "common/course/watch.hpp"

namespace flash_steps::course {
namespace {

struct Student {
  explicit Student(const CommonArguments& common)
      : project(open_project(common)),
        submission(read_submission(project, project.root)),
        progress(project) {}
  Project project;
  Submission submission;
  Progress progress;
};

// An id that was given, or the one to be done now.
std::string id_or_next(const Student& student, const std::string& id) {
  if (!id.empty()) return student.project.manifest.region(id).id;
  const std::string open = first_open(student.project, student.submission, student.progress);
  if (open.empty()) throw cli::UsageError("all exercises pass; name the one that you mean");
  return open;
}

void tell_outside(const Submission& submission) {
  for (const std::string& line : submission.changed_outside) {
    fmt::print("note: changed outside the marks, which does not count: {}\n", line);
  }
}

void show_progress(const std::string& what) {
  if (isatty(2) == 1) fmt::print(stderr, "\r\033[K    {}", what);
}

void clear_progress() {
  if (isatty(2) == 1) fmt::print(stderr, "\r\033[K");
}

// One line, if there was more than one exercise. Whether there was one, and all of them pass.
bool tell_counts(const std::map<State, int>& counts) {
  std::string line;
  int all = 0, good = 0;
  for (const auto& [state, count] : counts) {
    line += fmt::format("{}{} {}", line.empty() ? "" : "; ", count, to_string(state));
    all += count;
    good += passes(state) ? count : 0;
  }
  if (all > 1) fmt::print("{} of {} pass: {}\n", good, all, line);
  return all > 0 && good == all;
}

const Chapter& find_chapter(const Manifest& manifest, const std::string& number) {
  return manifest.chapter(number.size() == 1 ? "0" + number : number);
}

// The ids that the words of a command line stand for: ids, chapters' numbers, or nothing for
// all.
std::vector<std::string> ids_of(const Manifest& manifest,
                                const std::vector<std::string>& words) {
  if (words.empty()) return manifest.ids();
  std::vector<std::string> ids;
  for (const std::string& word : words) {
    if (word.find('.') != std::string::npos) {
      ids.push_back(manifest.region(word).id);
    } else {
      const Chapter& chapter = find_chapter(manifest, word);
      ids.insert(ids.end(), chapter.ids.begin(), chapter.ids.end());
    }
  }
  return ids;
}

}  // namespace

CheckSettings settings_of(const CommonArguments& arguments) {
  CheckSettings settings;
  std::random_device random;
  settings.seed = arguments.seed.value_or(random() % 1000000 + 1);
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  settings.jobs = arguments.jobs > 0 ? arguments.jobs : std::max(1, processors);
  settings.gpu = !arguments.no_gpu && gpu_is_here();
  settings.progress = show_progress;
  return settings;
}

Project open_project(const CommonArguments& arguments) {
  return load_project(arguments.root.empty() ? find_project(fs::current_path())
                                             : find_project(arguments.root));
}

void command_next(const CommonArguments& common, const std::string& chapter) {
  const Student student(common);
  const std::string number =
      chapter.empty() ? "" : find_chapter(student.project.manifest, chapter).number;
  fmt::print("{}", Screen(student.project).next(student.submission, student.progress, number));
}

void command_list(const CommonArguments& common) {
  const Student student(common);
  fmt::print("{}", Screen(student.project).list(student.submission, student.progress));
}

bool command_check(const CommonArguments& common, const std::vector<std::string>& what) {
  Student student(common);
  const Screen screen(student.project);
  CheckSettings settings = settings_of(common);
  settings.stop_at_failure = true;
  Checker checker(student.project, settings);
  const std::vector<std::string> ids = ids_of(student.project.manifest, what);
  std::map<State, int> counts;
  for (const std::string& id : ids) {
    const Verdict verdict = checker.check(student.submission, id);
    clear_progress();
    student.progress.remember(verdict, student.submission.answers.at(id));
    fmt::print("{}", screen.verdict(verdict, ids.size() > 1));
    std::fflush(stdout);
    if (verdict.most_points > 0) ++counts[verdict.state];  // else it is for a GPU only
  }
  tell_outside(student.submission);
  return tell_counts(counts);
}

void command_watch(const CommonArguments& common, const std::string& id) {
  const Project project = open_project(common);
  if (!id.empty()) project.manifest.region(id);
  CheckSettings settings = settings_of(common);
  settings.stop_at_failure = true;
  watch(project, settings, id);
}

void command_hint(const CommonArguments& common, const std::string& id) {
  Student student(common);
  fmt::print("{}", next_hint(student.project, student.progress, id_or_next(student, id)));
}

void command_reset(const CommonArguments& common, const std::string& id) {
  Student student(common);
  student.project.manifest.region(id);
  if (!student.project.is_starter) {
    throw cli::UsageError(
        "this is the reference, where nothing is reset; a starter comes from make-student");
  }
  const Answer& answer = student.submission.answers.at(id);
  if (answer.line == 0) throw cli::UsageError(answer.problem);
  const fs::path path = student.project.root / answer.file;
  const std::string text = read_file(path);
  std::vector<Problem> problems;
  scan_text(answer.file, text, problems);
  if (!problems.empty()) throw cli::UsageError("mend this first: " + problems.front().text());
  const fs::path kept = student.progress.back_up(id, answer.body);
  write_file(path, replace_bodies(answer.file, text, {{id, student.project.stub_body(id)}}));
  fmt::print("{} is as it was handed out. Your lines are kept in {}\n", id,
             kept.lexically_relative(student.project.root).string());
}

void command_solution(const CommonArguments& common, const std::string& id) {
  Student student(common);
  student.project.manifest.region(id);
  Standing now = standing(student.submission, student.progress, id);
  if (!now.current) {
    Checker checker(student.project, settings_of(common));
    const Verdict verdict = checker.check(student.submission, id);
    clear_progress();
    student.progress.remember(verdict, student.submission.answers.at(id));
    now.state = verdict.state;
  }
  if (!passes(now.state)) {
    throw cli::UsageError(fmt::format("{} does not pass yet ({}); hints help: course hint {}",
                                      id, to_string(now.state), id));
  }
  fmt::print("{}:\n\n{}", student.project.regions.at(id).file,
             student.project.regions.at(id).body);
}

}  // namespace flash_steps::course

#include "common/course/submission.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/course/body.hpp"

namespace flash_steps::course {
namespace {

// No honest answer comes near it.
constexpr std::size_t kMostBytes = 1 << 16;

// Students' editors may write \r\n, and a mark of UTF-8 at the beginning.
std::string unix_lines(std::string text) {
  if (text.rfind("\xEF\xBB\xBF", 0) == 0) text.erase(0, 3);
  text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

// The file where it belongs, or by its name alone: some upload files one by one. Empty if there
// is none. A link, which might lead anywhere, and a giant are none.
std::string read_if_there(const fs::path& directory, const fs::path& file) {
  constexpr std::uintmax_t kLargest = 1 << 20;
  for (const fs::path& path : {directory / file, directory / file.filename()}) {
    std::error_code error;
    if (!fs::is_regular_file(fs::symlink_status(path, error))) continue;
    if (fs::file_size(path, error) <= kLargest) return unix_lines(read_file(path));
  }
  return "";
}

Answer take(const Region& region) {
  Answer answer{region.file, region.begin, region.body, "", false};
  answer.not_started = is_not_started(region.body);
  if (answer.not_started) return answer;
  if (region.body.size() > kMostBytes) {
    answer.problem =
        fmt::format("{}:{}: more than 64 KiB between the marks", region.file, region.begin);
  } else if (const auto problem = find_body_problem(region.body)) {
    answer.problem =
        fmt::format("{}:{}: {}", region.file, region.begin + problem->line, problem->what);
  }
  return answer;
}

// The answers in one file. Marks that are wrong spoil the regions that are not found for them.
void take_file(const Project& project, const std::string& file, const std::string& text,
               Submission& submission) {
  std::vector<Problem> problems;
  std::map<std::string, int> times;
  for (const Region& region : scan_text(file, text, problems)) {
    if (!project.manifest.graded.contains(region.id)) continue;
    if (const std::string& home = project.regions.at(region.id).file; home != file) {
      submission.changed_outside.push_back(
          fmt::format("{}: {} is read from {} only", file, region.id, home));
      continue;
    }
    submission.answers[region.id] = take(region);
    if (++times[region.id] > 1) {
      submission.answers[region.id].problem =
          fmt::format("{}:{}: region {} is there twice", file, region.begin, region.id);
    }
  }
  for (const auto& [id, region] : project.regions) {
    if (region.file != file || !project.manifest.graded.contains(id)) continue;
    if (submission.answers.contains(id)) continue;
    const std::string why =
        text.empty()       ? "the file is missing, or no plain file of at most 1 MiB"
        : problems.empty() ? "its marks \"// [begin " + id + "]\" and \"// [end]\" are gone"
                           : "its marks are broken: " + problems.front().text();
    submission.answers[id] = {file, 0, "", file + ": " + why, text.empty()};
  }
}

// The first line outside the marks that is not as it was handed out.
void compare_outside(const Project& project, const std::string& file, const std::string& text,
                     Submission& submission) {
  std::map<std::string, std::string> empty;
  for (const auto& [id, graded] : project.manifest.graded) empty[id] = "";
  const auto outside = [&](const std::string& whole) {
    return split_lines(replace_bodies(file, whole, empty));
  };
  const std::vector<std::string> theirs = outside(text),
                                 ours = outside(unix_lines(project.starter_text(file)));
  for (std::size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
    if (i < theirs.size() && i < ours.size() && theirs[i] == ours[i]) continue;
    const std::string what =
        i < theirs.size() ? trimmed(theirs[i]) : "(lines are missing at the end)";
    submission.changed_outside.push_back(file + ": " + what);
    return;
  }
}

}  // namespace

Submission read_submission(const Project& project, const fs::path& directory) {
  Submission submission;
  submission.name = directory.filename().string();
  std::map<std::string, std::string> files;  // with graded regions, as they were submitted
  for (const auto& [id, graded] : project.manifest.graded) {
    const std::string& file = project.regions.at(id).file;
    if (!files.contains(file)) files[file] = read_if_there(directory, file);
  }
  for (const auto& [file, text] : files) {
    take_file(project, file, text, submission);
    if (!text.empty()) compare_outside(project, file, text, submission);
  }
  for (const auto& [file, hash] : project.hashes) {
    std::error_code error;
    const bool plain = fs::is_regular_file(fs::symlink_status(directory / file, error));
    if (!is_below(file, {"tests", "common"}) || !plain) continue;
    if (hash_text(read_file(directory / file)) != hash)
      submission.changed_outside.push_back(file);
  }
  return submission;
}

bool holds_answers(const Project& project, const fs::path& directory) {
  return std::any_of(project.manifest.graded.begin(), project.manifest.graded.end(),
                     [&](const auto& graded) {
                       const std::string& file = project.regions.at(graded.first).file;
                       return !read_if_there(directory, file).empty();
                     });
}

fs::path find_submission(const fs::path& start) {
  std::error_code error;
  if (fs::is_directory(start / "chapters", error)) return start;
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(start, error)) {
    if (entry.is_directory(error) && fs::is_directory(entry.path() / "chapters", error)) {
      inside.push_back(entry.path());
    }
  }
  return inside.size() == 1 ? inside.front() : start;
}

}  // namespace flash_steps::course

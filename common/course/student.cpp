#include "common/course/student.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "common/cli/error.hpp"
#include "common/course/lessons.hpp"

namespace flash_steps::course {
namespace {

std::string two_digits(int number) { return fmt::format("{:02}", number); }

std::string chapter_table(const Manifest& manifest) {
  std::string table = "| chapter | | graded ids | points |\n|---|---|---|---|\n";
  for (const Chapter& chapter : manifest.chapters) {
    std::string ids;
    int points = 0, gpu = 0;
    for (const std::string& id : chapter.ids) {
      const GradedRegion& region = manifest.region(id);
      ids += (ids.empty() ? "`" : ", `") + id + "`";
      (region.needs == Needs::gpu ? gpu : points) += region.points + region.traffic_points;
    }
    const std::string more = gpu > 0 ? fmt::format(", {} more on a GPU", gpu) : "";
    table += fmt::format("| [{}](chapters/{}/README.md) | {} | {} | {}{} |\n", chapter.number,
                         chapter.directory, chapter.title, ids.empty() ? "given" : ids, points,
                         more);
  }
  return table;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

// As `course list` counts them.
void fill_in_counts(std::string& text, const Manifest& manifest) {
  int exercises = 0, points = 0;
  for (const std::string& id : manifest.ids()) {
    const GradedRegion& region = manifest.region(id);
    if (region.needs == Needs::gpu) continue;
    ++exercises;
    points += region.points + region.traffic_points;
  }
  replace(text, "{{exercises}}", std::to_string(exercises));
  replace(text, "{{points}}", std::to_string(points));
}

// Without tests nobody could have an exercise's points.
void require_tests(const Manifest& manifest, const std::string& number) {
  for (const std::string& id : manifest.chapter(number).ids) {
    if (!manifest.region(id).tests.empty()) continue;
    throw cli::UsageError(fmt::format(
        "no test belongs to {} in chapters/course.json; `course learn {}` finds some", id,
        number));
  }
}

// docs/student/X is X of the starter: its README, its .gitignore.
constexpr char kTemplates[] = "docs/student";

}  // namespace

std::set<std::string> parse_chapters(const std::string& text) {
  static const std::regex kPart("([0-9]{1,2})(-([0-9]{1,2}))?");
  std::set<std::string> chapters;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    std::smatch match;
    if (!std::regex_match(part, match, kPart)) {
      throw cli::UsageError("--chapters expects numbers as in 1-6 or 3,5, found '" + text +
                            "'");
    }
    const int first = std::stoi(match[1]),
              last = match[3].matched ? std::stoi(match[3]) : first;
    if (last < first) throw cli::UsageError("--chapters: " + part + " is no range");
    for (int number = first; number <= last; ++number) chapters.insert(two_digits(number));
    begin = end + 1;
  }
  return chapters;
}

std::map<std::string, std::string> make_starter(const Project& reference,
                                                const std::set<std::string>& chapters) {
  if (reference.is_starter)
    throw cli::UsageError("this is a starter already; make one from the reference");
  for (const std::string& number : chapters) require_tests(reference.manifest, number);
  std::set<std::string> present, given;
  for (const Chapter& chapter : reference.manifest.chapters) {
    if (chapter.number > *chapters.rbegin()) continue;
    present.insert(chapter.number);
    if (!chapters.contains(chapter.number)) given.insert(chapter.number);
  }
  Project course = reference;  // as far as it is handed out
  course.manifest_json = filter_manifest(reference.manifest_json, present, given);
  course.manifest = parse_manifest(course.manifest_json);

  std::set<std::string> paths;
  for (const std::string& file : reference.files) {
    const std::string number = chapter_of(file);
    const bool there = number.empty() || present.contains(number);
    if (there && !file.ends_with("/hints.md")) paths.insert(file);
  }
  std::map<std::string, std::string> files;
  for (const std::string& file : paths) {
    std::string text = course.starter_text(file);
    if (file == "chapters/CMakeLists.txt") text = keep_chapters(text, present);
    if (file == "chapters/course.json") text = course.manifest_json;
    if (file.ends_with(".md")) text = student_page(course, file, text, paths);
    files[file] = text;
  }
  const fs::path templates = reference.root / kTemplates;
  for (const std::string& file :
       fs::exists(templates) ? project_files(templates) : std::vector<std::string>()) {
    std::string text = read_file(templates / file);
    replace(text, "{{chapters}}", chapter_table(course.manifest));
    fill_in_counts(text, course.manifest);
    files[file] = text;
  }
  files[".course/solutions.json"] = pack(course, files);
  return files;
}

void write_starter(const Project& reference, const std::map<std::string, std::string>& files,
                   const fs::path& out) {
  if (fs::exists(out) && !fs::is_empty(out)) {
    throw cli::UsageError(out.string() + " is there already and not empty");
  }
  for (const auto& [file, text] : files) {
    write_file(out / file, text);
    const fs::path original = reference.root / file;
    if (fs::exists(original)) fs::permissions(out / file, fs::status(original).permissions());
  }
}

}  // namespace flash_steps::course

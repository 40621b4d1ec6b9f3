#include "common/course/project.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "common/cli/error.hpp"
#include "common/course/body.hpp"
#include "common/course/lessons.hpp"

namespace flash_steps::course {
namespace {

using Json = nlohmann::ordered_json;
const char* const kManifest = "chapters/course.json";
const char* const kPack = ".course/solutions.json";

void read_pack(Project& project) try {
  const Json packed = Json::parse(read_file(project.root / kPack));
  for (const auto& [file, hash] : packed.at("handed_out").items()) {
    project.files.push_back(file);
    project.hashes[file] = hash.get<std::uint64_t>();
  }
  for (const auto& [file, text] : packed.at("solutions").items()) {
    project.texts[file] = from_base64(text.get<std::string>());
  }
  for (const auto& [file, text] : packed.at("hints").items()) {
    project.hints[file] = from_base64(text.get<std::string>());
  }
} catch (const Json::exception&) {
  throw std::runtime_error(std::string(kPack) + " is damaged: take it from the starter again");
}

// Only the reference is without the packed solutions, and it has no gaps.
void require_solutions(const Project& project) {
  for (const auto& [id, region] : project.regions) {
    if (!project.manifest.graded.contains(id) || !is_not_started(region.body)) continue;
    throw std::runtime_error(fmt::format(
        "{} is missing, and {} is not written: copy the starter with its hidden folders", kPack,
        id));
  }
}

// What the reference hands out: not what the manifest leaves out, nor chapters that it lacks.
void find_files(Project& project) {
  const std::set<std::string> chapters = project.manifest.numbers();
  for (const std::string& file : project_files(project.root)) {
    const std::string number = chapter_of(file);
    if (is_below(file, project.manifest.leave_out)) continue;
    if (number.empty() || chapters.contains(number)) project.files.push_back(file);
  }
}

void read_texts(Project& project) {
  for (const std::string& file : project.files) {
    if (may_have_regions(file) && !project.texts.contains(file)) {
      project.texts[file] = read_file(project.root / file);
    }
  }
}

// Every region is listed, and every listed region is there.
void compare_with_manifest(const Project& project, std::vector<Problem>& problems) {
  const Manifest& manifest = project.manifest;
  std::set<std::string> chapters;
  for (const Chapter& chapter : manifest.chapters) chapters.insert(chapter.number);
  for (const auto& [id, region] : project.regions) {
    if (manifest.graded.contains(id) || manifest.given.contains(id)) continue;
    if (!chapters.contains(id.substr(0, 2)))
      continue;  // of a chapter that is not in the course
    problems.push_back(
        {region.file, region.begin, "region " + id + " is not listed in " + kManifest});
  }
  const auto check = [&](const std::string& id) {
    if (!project.regions.contains(id))
      problems.push_back({kManifest, 1, "there is no region " + id});
  };
  for (const auto& [id, region] : manifest.graded) check(id);
  for (const std::string& id : manifest.given) check(id);
}

}  // namespace

std::string Project::stub_body(const std::string& id) const {
  const GradedRegion& graded = manifest.region(id);
  const std::string indent = indentation(regions.at(id).body);
  std::string body = indent + "// " + graded.todo + "\n";
  for (const std::string& line : split_lines(graded.stub)) {
    body += line.empty() ? "\n" : indent + line + "\n";
  }
  return body;
}

std::string Project::starter_text(const std::string& file) const {
  std::map<std::string, std::string> bodies;
  for (const auto& [id, region] : regions) {
    if (region.file == file && manifest.graded.contains(id)) bodies[id] = stub_body(id);
  }
  const std::string text = reference_text(file);
  return bodies.empty() ? text : replace_bodies(file, text, bodies);
}

std::string Project::reference_text(const std::string& file) const {
  for (const auto* packed : {&texts, &hints}) {
    if (const auto text = packed->find(file); text != packed->end()) return text->second;
  }
  const std::string text = read_file(root / file);
  return file == "chapters/CMakeLists.txt" ? keep_chapters(text, manifest.numbers()) : text;
}

std::string chapter_of(const std::string& file) {
  static const std::regex kChapter("(chapters|tests)/([0-9][0-9])_.*");
  std::smatch match;
  return std::regex_match(file, match, kChapter) ? match[2].str() : "";
}

std::string keep_chapters(const std::string& text, const std::set<std::string>& chapters) {
  static const std::regex kAdd(R"(add_chapter\(([0-9][0-9])_.*)");
  std::string kept;
  for (const std::string& line : split_lines(text)) {
    std::smatch match;
    if (!std::regex_match(line, match, kAdd) || chapters.contains(match[1]))
      kept += line + "\n";
  }
  return kept;
}

Project load_project(const fs::path& root) {
  Project project;
  project.root = fs::absolute(root).lexically_normal();
  project.is_starter = fs::exists(root / kPack);
  project.manifest_json = read_file(root / kManifest);
  project.manifest = parse_manifest(project.manifest_json);
  if (project.is_starter) {
    read_pack(project);
  } else {
    find_files(project);
  }
  read_texts(project);
  std::vector<Problem> problems;
  project.regions = scan_texts(project.texts, problems);
  compare_with_manifest(project, problems);
  if (problems.empty() && !project.is_starter) require_solutions(project);
  for (const Problem& problem : problems) fmt::print(stderr, "{}\n", problem.text());
  if (!problems.empty()) {
    throw std::runtime_error(
        fmt::format("{} problems with the marked regions", problems.size()));
  }
  return project;
}

fs::path find_project(const fs::path& start) {
  for (fs::path path = fs::absolute(start);; path = path.parent_path()) {
    if (fs::exists(path / kManifest)) return path;
    if (path == path.parent_path()) break;
  }
  throw cli::UsageError("no chapters/course.json in " + fs::absolute(start).string() +
                        " or above it: call course inside the homework, or with --root DIR");
}

std::string pack(const Project& reference,
                 const std::map<std::string, std::string>& handed_out) {
  Json packed;
  packed["note"] =
      "The reference solutions: for the course tool, which puts them in the place of what is "
      "not yet "
      "written. No secret, but no help either: hints are better.";
  for (const auto& [file, text] : handed_out) packed["handed_out"][file] = hash_text(text);
  packed["solutions"] = Json::object();
  for (const auto& [id, region] : reference.regions) {
    if (!reference.manifest.graded.contains(id)) continue;
    packed["solutions"][region.file] = to_base64(reference.texts.at(region.file));
    const std::string hints = hints_file(reference.manifest, id);
    packed["hints"][hints] = to_base64(reference.reference_text(hints));
  }
  return packed.dump(1) + "\n";
}

}  // namespace flash_steps::course

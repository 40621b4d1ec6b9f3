#include "common/course/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/cli/error.hpp"

namespace flash_steps::course {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::runtime_error(fmt::format("chapters/course.json: {}: {}", where, what));
}

// The fields of an entry, each taken once, so that a misspelt one is not passed over.
void require_fields(const std::string& where, const Json& entry,
                    const std::set<std::string>& known) {
  if (!entry.is_object()) fail(where, "must be an object");
  for (const auto& [name, value] : entry.items()) {
    if (!known.contains(name)) fail(where, "\"" + name + "\" is no field of it");
  }
}

Needs parse_needs(const std::string& id, const std::string& word) {
  if (word == "cpu") return Needs::cpu;
  if (word == "sim") return Needs::sim;
  if (word == "gpu") return Needs::gpu;
  fail(id, "needs must be cpu, sim or gpu, found \"" + word + "\"");
}

GradedRegion parse_region(const std::string& id, const Json& entry) {
  require_fields(id, entry, {"points", "needs", "todo", "stub"});
  GradedRegion region;
  region.id = id;
  region.chapter = id.substr(0, 2);
  region.points = entry.at("points").get<int>();
  region.needs = parse_needs(id, entry.at("needs").get<std::string>());
  region.todo = entry.at("todo").get<std::string>();
  region.stub = entry.value("stub", "todo(\"" + id + "\");");
  if (region.points < 1) fail(id, "points must be at least 1");
  if (region.todo.find('\n') != std::string::npos) fail(id, "todo must be one line");
  if (region.stub.find("todo(\"" + id + "\")") == std::string::npos) {
    fail(id, "its stub does not say todo(\"" + id + "\")");
  }
  return region;
}

// "tests" or "traffic": adds each case to the regions that it belongs to.
void parse_tests(const Json& cases, Manifest& manifest, const Chapter& chapter,
                 std::vector<std::string> GradedRegion::*list) {
  for (const auto& [name, ids] : cases.items()) {
    if (name.find_first_of(",;") != std::string::npos) {
      fail(chapter.directory, "a case's name holds no comma and no semicolon: " + name);
    }
    for (const std::string id : ids) {
      if (manifest.given.contains(id)) continue;  // its other ids have their points for it
      const auto region = manifest.graded.find(id);
      if (region == manifest.graded.end() || region->second.chapter != chapter.number) {
        fail(chapter.directory,
             fmt::format("\"{}\" names {}, which is no graded id of it", name, id));
      }
      (region->second.*list).push_back(name);
    }
  }
}

void parse_chapter(const Json& entry, Manifest& manifest) {
  require_fields("a chapter", entry, {"directory", "title", "regions", "tests", "traffic"});
  Chapter chapter;
  chapter.directory = entry.at("directory").get<std::string>();
  chapter.number = chapter.directory.substr(0, 2);
  chapter.title = entry.at("title").get<std::string>();
  for (const auto& [id, region] : entry.at("regions").items()) {
    if (id.substr(0, 2) != chapter.number) fail(id, "is no id of chapter " + chapter.directory);
    if (region == "given") {
      manifest.given.insert(id);
    } else {
      manifest.graded[id] = parse_region(id, region);
      chapter.ids.push_back(id);
    }
  }
  parse_tests(entry.at("tests"), manifest, chapter, &GradedRegion::tests);
  if (entry.contains("traffic")) {
    const Json& traffic = entry.at("traffic");
    require_fields(chapter.directory + ", traffic", traffic, {"points", "tests"});
    parse_tests(traffic.at("tests"), manifest, chapter, &GradedRegion::traffic);
    for (const std::string& id : chapter.ids) {
      GradedRegion& region = manifest.graded.at(id);
      if (!region.traffic.empty()) region.traffic_points = traffic.at("points").get<int>();
    }
  }
  manifest.chapters.push_back(chapter);
}

}  // namespace

std::string to_string(Needs needs) {
  return needs == Needs::cpu ? "cpu" : needs == Needs::sim ? "sim" : "gpu";
}

const Chapter& Manifest::chapter(const std::string& number) const {
  for (const Chapter& c : chapters) {
    if (c.number == number || c.directory == number) return c;
  }
  throw cli::UsageError("there is no chapter '" + number + "' in this homework");
}

const GradedRegion& Manifest::region(const std::string& id) const {
  const auto found = graded.find(id);
  if (found != graded.end()) return found->second;
  throw cli::UsageError(given.contains(id)
                            ? id + " is given: there is nothing to do in it"
                            : "there is no '" + id + "'; `course list` shows what there is");
}

std::vector<std::string> Manifest::ids() const {
  std::vector<std::string> all;
  for (const Chapter& c : chapters) all.insert(all.end(), c.ids.begin(), c.ids.end());
  return all;
}

std::set<std::string> Manifest::numbers() const {
  std::set<std::string> all;
  for (const Chapter& c : chapters) all.insert(c.number);
  return all;
}

Manifest parse_manifest(const std::string& json) {
  try {
    const Json all = Json::parse(json);
    require_fields("the file", all, {"about", "limits", "leave_out", "chapters"});
    Manifest manifest;
    const Json& limits = all.at("limits");
    manifest.limits.test_seconds = limits.at("test_seconds").get<double>();
    manifest.limits.build_seconds = limits.at("build_seconds").get<double>();
    manifest.limits.memory_gib = limits.at("memory_gib").get<int>();
    manifest.leave_out = all.at("leave_out").get<std::vector<std::string>>();
    for (const Json& chapter : all.at("chapters")) parse_chapter(chapter, manifest);
    return manifest;
  } catch (const Json::exception& error) {
    throw std::runtime_error(std::string("chapters/course.json: ") + error.what());
  }
}

std::string filter_manifest(const std::string& json, const std::set<std::string>& chapters,
                            const std::set<std::string>& given) {
  Json all = Json::parse(json);
  Json kept = Json::array();
  for (Json& chapter : all.at("chapters")) {
    const std::string number = chapter.at("directory").get<std::string>().substr(0, 2);
    if (!chapters.contains(number)) continue;
    if (given.contains(number)) {
      for (auto& [id, region] : chapter.at("regions").items()) region = "given";
      chapter["tests"] = Json::object();
      chapter.erase("traffic");
    }
    kept.push_back(chapter);
  }
  all["chapters"] = kept;
  return all.dump(1) + "\n";
}

}  // namespace flash_steps::course

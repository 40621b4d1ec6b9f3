#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "common/course/lessons.hpp"
#include "common/course/student.hpp"
#include "common/course/verify.hpp"

namespace flash_steps::course {
namespace {

using Texts = std::map<std::string, std::string>;

// How often each line of code stands in these texts. Short lines and braces say nothing.
std::map<std::string, int> count_lines(const Texts& texts) {
  constexpr std::size_t kShortest = 12;
  std::map<std::string, int> counts;
  for (const auto& [file, text] : texts) {
    for (const std::string& line : split_lines(text)) {
      if (trimmed(line).size() >= kShortest) ++counts[trimmed(line)];
    }
  }
  return counts;
}

// The names of the test cases in a chapter's test source.
std::set<std::string> case_names(const Project& reference, const Chapter& chapter) {
  static const std::regex kCase("TEST_CASE\\(\\s*\"([^\"]*)\"\\s*\\)");
  std::set<std::string> names;
  const std::string source = read_file(reference.root / "tests" / (chapter.directory + ".cpp"));
  for (std::sregex_iterator match(source.begin(), source.end(), kCase), last; match != last;
       ++match) {
    names.insert((*match)[1]);
  }
  return names;
}

void verify_manifest(const Project& reference, std::vector<std::string>& problems) {
  const Manifest& manifest = reference.manifest;
  for (const Chapter& chapter : manifest.chapters) {
    const std::set<std::string> names = case_names(reference, chapter);
    int cpu = 0, sim = 0;
    for (const std::string& id : chapter.ids) {
      const GradedRegion& region = manifest.region(id);
      cpu += region.needs == Needs::cpu;
      sim += region.needs == Needs::sim;
      if (region.tests.empty()) problems.push_back(id + " has no test");
      for (const auto* list : {&region.tests, &region.traffic}) {
        for (const std::string& name : *list) {
          if (!names.contains(name))
            problems.push_back(fmt::format("{}: there is no test \"{}\"", id, name));
        }
      }
      const std::string page = reference.reference_text(hints_file(manifest, id));
      const std::size_t hints = parse_hints(page, id).size();
      if (hints != 3) problems.push_back(fmt::format("{} has {} hints, not 3", id, hints));
    }
    if (cpu == 0 || sim == 0) {
      problems.push_back("chapter " + chapter.number +
                         " has no graded id for C++ or none for CUDA");
    }
  }
}

void verify_round_trip(const Project& reference, std::vector<std::string>& problems) {
  for (const auto& [file, text] : reference.texts) {
    Texts solutions;
    for (const auto& [id, region] : reference.regions) {
      if (region.file == file) solutions[id] = region.body;
    }
    if (replace_bodies(file, reference.starter_text(file), solutions) != text) {
      problems.push_back(file + ": re-inserting the solutions does not give the reference");
    }
  }
}

// A line may stand both in a solution and in code that everybody sees; but no more often in the
// starter than there.
void verify_nothing_left(const Project& reference, const Texts& starter,
                         std::vector<std::string>& problems) {
  Texts sources, pages, original, bodies, stubs;
  for (const auto& [file, text] : starter) {
    if (may_have_regions(file)) sources[file] = text;
    if (file.ends_with(".md")) pages[file] = text;
  }
  for (const auto& [file, text] : sources) original[file] = reference.reference_text(file);
  for (const auto& [id, graded] : reference.manifest.graded) {
    bodies[id] = reference.regions.at(id).body;
    stubs[id] = reference.stub_body(id);
  }
  const auto in_starter = count_lines(sources), in_pages = count_lines(pages),
             in_reference = count_lines(original), in_stubs = count_lines(stubs);
  const auto count = [](const std::map<std::string, int>& counts, const std::string& line) {
    const auto found = counts.find(line);
    return found == counts.end() ? 0 : found->second;
  };
  for (const auto& [line, times] : count_lines(bodies)) {
    const int elsewhere = count(in_reference, line) - times;
    if (count(in_starter, line) > elsewhere + count(in_stubs, line)) {
      problems.push_back("a line of a solution is left in the starter's sources: " + line);
    }
    if (elsewhere == 0 && count(in_pages, line) > 0) {
      problems.push_back("a line of a solution is left in the starter's pages: " + line);
    }
  }
}

// Reads the starter as a student's submission.
void verify_not_started(const Project& reference, const Texts& starter,
                        std::vector<std::string>& problems) {
  const fs::path folder = reference.scratch() / "verify" / "starter";
  fs::remove_all(folder);
  write_starter(reference, starter, folder);
  const Project project = load_project(folder);
  const Submission submission = read_submission(project, folder);
  for (const auto& [id, answer] : submission.answers) {
    const auto verdict = judge_text(answer, id);
    if (!verdict || verdict->state != State::not_started) {
      problems.push_back(id + " is not \"not started\" in the starter");
    }
    if (project.regions.at(id).body != reference.regions.at(id).body) {
      problems.push_back(id + ": the packed solution is not the reference's");
    }
  }
  for (const std::string& line : submission.changed_outside) {
    problems.push_back("the starter differs from itself: " + line);
  }
}

}  // namespace

std::vector<std::string> verify_texts(const Project& reference) {
  std::vector<std::string> problems;
  verify_manifest(reference, problems);
  verify_round_trip(reference, problems);
  const Texts starter = make_starter(reference, reference.manifest.numbers());
  verify_nothing_left(reference, starter, problems);
  verify_not_started(reference, starter, problems);
  return problems;
}

}  // namespace flash_steps::course

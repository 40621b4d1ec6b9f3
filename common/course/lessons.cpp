#include "common/course/lessons.hpp"

#include <fmt/format.h>

#include <regex>
#include <utility>

namespace flash_steps::course {
namespace {

bool is_fence(const std::string& line) { return trimmed(line).rfind("```", 0) == 0; }

// What stands in the place of a listing.
std::string pointer(const Project& project, const std::string& id) {
  const Region& region = project.regions.at(id);
  return fmt::format("> **Yours to write:** `{}`, in `{}`. {}", id,
                     fs::path(region.file).filename().string(),
                     project.manifest.region(id).todo);
}

// All exercises of a chapter, for the end of its lesson: not every one is quoted in it.
std::string exercise_table(const Project& project, const Chapter& chapter) {
  if (chapter.ids.empty()) return "";
  std::string table =
      "\n## Yours to write\n\nIn the order in which `course next` gives them:\n\n"
      "| exercise | where | what |\n|---|---|---|\n";
  for (const std::string& id : chapter.ids) {
    const fs::path file = fs::path(project.regions.at(id).file)
                              .lexically_relative("chapters/" + chapter.directory);
    table += fmt::format("| `{}` | [{}]({}) | {} |\n", id, file.string(), file.string(),
                         project.manifest.region(id).todo);
  }
  return table;
}

// Whether a link from `file` leads to something that students have.
bool leads_somewhere(const std::string& file, const std::string& link,
                     const std::set<std::string>& handed_out) {
  const std::string path = link.substr(0, link.find('#'));
  if (path.empty() || link.find("://") != std::string::npos || link.rfind("mailto:", 0) == 0) {
    return true;
  }
  std::string target =
      (fs::path(file).parent_path() / path).lexically_normal().generic_string();
  while (target.ends_with("/")) target.pop_back();
  if (target.empty() || target == ".") return true;
  const auto below = handed_out.lower_bound(target + "/");
  return handed_out.contains(target) ||
         (below != handed_out.end() && below->rfind(target + "/", 0) == 0);
}

std::string without_dead_links(const std::string& file, const std::string& line,
                               const std::set<std::string>& handed_out) {
  static const std::regex kLink(R"(\[([^\[\]]+)\]\(([^()\s]+)\))");
  std::string result;
  std::size_t end = 0;
  for (std::sregex_iterator match(line.begin(), line.end(), kLink), last; match != last;
       ++match) {
    result += line.substr(end, static_cast<std::size_t>(match->position()) - end);
    result += leads_somewhere(file, (*match)[2], handed_out) ? match->str() : (*match)[1].str();
    end = static_cast<std::size_t>(match->position() + match->length());
  }
  return result + line.substr(end);
}

}  // namespace

std::string student_page(const Project& project, const std::string& file,
                         const std::string& text, const std::set<std::string>& handed_out) {
  static const std::regex kQuote(R"(<!-- region ([^ ]+) -->)");
  std::string page, quoted;  // quoted: a graded region whose listing is being left out
  bool fenced = false;
  for (const std::string& line : split_lines(text)) {
    std::smatch match;
    const bool fence = is_fence(line);
    if (fence) fenced = !fenced;
    if (!quoted.empty()) {
      if (!fence || fenced) continue;
      page += pointer(project, quoted) + "\n";
      quoted.clear();
    } else if (!fenced && !fence && std::regex_match(line, match, kQuote) &&
               project.manifest.graded.contains(match[1])) {
      quoted = match[1];
    } else {
      page += (fenced || fence ? line : without_dead_links(file, line, handed_out)) + "\n";
    }
  }
  for (const Chapter& chapter : project.manifest.chapters) {
    const bool lesson = file == "chapters/" + chapter.directory + "/README.md";
    if (lesson) page += exercise_table(project, chapter);
  }
  return page;
}

std::vector<std::string> parse_hints(const std::string& page, const std::string& id) {
  static const std::regex kItem(R"(([0-9])\. (.*))");
  std::vector<std::string> hints;
  bool here = false;
  for (const std::string& line : split_lines(page)) {
    std::smatch match;
    if (line.rfind("## ", 0) == 0) {
      here = trimmed(line.substr(3)) == id;
    } else if (here && std::regex_match(line, match, kItem)) {
      hints.push_back(match[2]);
    } else if (here && !hints.empty() && !trimmed(line).empty()) {
      hints.back() += " " + trimmed(line);
    }
  }
  return hints;
}

std::string plain_maths(std::string text) {
  static const std::vector<std::pair<std::regex, std::string>> kRules = [] {
    std::vector<std::pair<std::regex, std::string>> rules;
    for (const auto& [pattern, plain] : std::vector<std::pair<const char*, const char*>>{
             {R"(\\(mathrm|text)\{([^{}]*)\})", "$2"},
             {R"(\^\{([^{}]*)\})", "^($1)"},
             {R"(_\{([^{}]*)\})", "_$1"},
             {R"(\\lceil ?)", "ceil("},
             {R"( ?\\rceil)", ")"},
             {R"(\\infty)", "inf"},
             {R"(\\cdot)", "*"},
             {R"(\\top)", "T"},
             {R"(\\[,;:! ])", " "},
             {R"(\\([a-z]+))", "$1"},
             {R"([{}])", ""}}) {
      rules.emplace_back(std::regex(pattern), plain);
    }
    return rules;
  }();
  static const std::regex kMaths(R"(\$([^$]*)\$)");
  std::smatch match;
  while (std::regex_search(text, match, kMaths)) {
    std::string maths = match[1];
    for (const auto& [pattern, plain] : kRules)
      maths = std::regex_replace(maths, pattern, plain);
    text = match.prefix().str() + maths + match.suffix().str();
  }
  return text;
}

std::string hints_file(const Manifest& manifest, const std::string& id) {
  return "chapters/" + manifest.chapter(manifest.region(id).chapter).directory + "/hints.md";
}

}  // namespace flash_steps::course

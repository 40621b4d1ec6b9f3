#include "common/course/regions.hpp"

#include <algorithm>
#include <regex>

#include "common/course/files.hpp"

namespace flash_steps::course {
namespace {

// Reads the marks of one file, line by line.
class Scanner {
 public:
  Scanner(const std::string& file, std::vector<Problem>& problems)
      : file_(file), problems_(problems) {
    const std::string chapter = file.substr(file.find('/') + 1);
    number_ = chapter.rfind("_template", 0) == 0 ? "NN" : chapter.substr(0, 2);
    device_ = file.ends_with(".cu") || file.ends_with(".cuh");
  }

  std::vector<Region> scan(const std::string& text) {
    static const std::regex kBegin(R"(// \[begin ([^ ]+)\])"), kEnd(R"(// \[end\])"),
        kMisplaced(R"(.*//\s*\[\s*([Bb]egin\s+[^\s\]]+|[Ee]nd)\s*\].*)");
    constexpr std::size_t kLongest = 200;  // of a mark
    for (const std::string& line : split_lines(text)) {
      ++line_;
      const std::string mark = line.size() > kLongest ? "" : trimmed(line);
      std::smatch match;
      if (std::regex_match(mark, match, kBegin)) {
        begin(match[1]);
      } else if (std::regex_match(mark, kEnd)) {
        end();
      } else {
        if (std::regex_match(mark, kMisplaced))
          complain("a mark must be a line of its own: \"// [begin NN.name]\" or \"// [end]\"");
        if (open_) region_.body += line + "\n";
      }
    }
    if (open_) complain("region " + region_.id + " is never closed", region_.begin);
    return regions_;
  }

 private:
  void complain(const std::string& what, int line = 0) {
    problems_.push_back({file_, line ? line : line_, what});
  }

  void begin(const std::string& id) {
    static const std::regex kId("([0-9][0-9]|NN)\\.[a-z0-9][A-Za-z0-9-]*");
    if (open_) {
      complain("region " + id + " begins inside region " + region_.id +
               ", which began in line " + std::to_string(region_.begin));
    }
    if (!std::regex_match(id, kId)) {
      complain("\"" + id + "\" is no region id: two digits, a dot, words with hyphens");
    } else if (id.substr(0, 2) != number_) {
      complain("region " + id + ": its number must be " + number_);
    }
    if (device_ != id.ends_with("-cuda")) {
      complain(device_ ? "region " + id + " is device code: its id must end in -cuda"
                       : "region " + id + " ends in -cuda, but is not in a .cu or .cuh");
    }
    region_ = {id, file_, line_, 0, ""};
    open_ = true;
  }

  void end() {
    if (!open_) return complain("[end] without a [begin ...]");
    region_.end = line_;
    regions_.push_back(region_);
    open_ = false;
  }

  std::string file_, number_;
  bool device_ = false, open_ = false;
  int line_ = 0;
  Region region_;
  std::vector<Region> regions_;
  std::vector<Problem>& problems_;
};

}  // namespace

std::vector<Region> scan_text(const std::string& file, const std::string& text,
                              std::vector<Problem>& problems) {
  return Scanner(file, problems).scan(text);
}

std::map<std::string, Region> scan_texts(const std::map<std::string, std::string>& texts,
                                         std::vector<Problem>& problems) {
  std::map<std::string, Region> regions;
  for (const auto& [file, text] : texts) {
    for (const Region& region : scan_text(file, text, problems)) {
      const auto [there, fresh] = regions.try_emplace(region.id, region);
      if (fresh) continue;
      problems.push_back({file, region.begin,
                          "region " + region.id + " is there twice: also in " +
                              there->second.file + ":" + std::to_string(there->second.begin)});
    }
  }
  return regions;
}

bool may_have_regions(const std::string& file) {
  if (file.rfind("chapters/", 0) != 0 || file.rfind("chapters/_template/", 0) == 0)
    return false;
  for (const char* ending : {".cpp", ".hpp", ".cu", ".cuh"}) {
    if (file.ends_with(ending)) return true;
  }
  return false;
}

std::string replace_bodies(const std::string& file, const std::string& text,
                           const std::map<std::string, std::string>& bodies) {
  std::vector<Problem> problems;
  const std::vector<Region> regions = scan_text(file, text, problems);
  std::string result;
  int line = 0;
  auto region = regions.begin();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    ++line;
    while (region != regions.end() && line > region->end) ++region;
    const bool inside = region != regions.end() && line > region->begin && line < region->end;
    const auto other = inside ? bodies.find(region->id) : bodies.end();
    if (other == bodies.end()) result.append(text, begin, end - begin);
    begin = end;
    // an empty body has no line of its own to be replaced
    if (region == regions.end() || line != region->begin) continue;
    if (const auto body = bodies.find(region->id); body != bodies.end()) result += body->second;
  }
  return result;
}

std::string indentation(const std::string& body) {
  std::string common;
  bool first = true;
  for (const std::string& line : split_lines(body)) {
    const std::size_t blanks = line.find_first_not_of(' ');
    if (blanks == std::string::npos) continue;
    if (first || blanks < common.size()) common = std::string(blanks, ' ');
    first = false;
  }
  return common;
}

}  // namespace flash_steps::course

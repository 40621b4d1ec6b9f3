#include "common/course/autograder.hpp"

#include <regex>

#include "common/cli/error.hpp"
#include "common/course/student.hpp"
#include "common/course/zip.hpp"

namespace flash_steps::course {
namespace {

std::string template_text(const Project& reference, const std::string& name) {
  return read_file(reference.root / "common/course/templates" / name);
}

}  // namespace

std::string gradescope_archive(const Project& reference,
                               const std::set<std::string>& chapters) {
  std::vector<ZipEntry> entries;
  for (const char* script : {"setup.sh", "run_autograder"}) {
    entries.push_back({script, template_text(reference, script), true});
  }
  for (const auto& [file, text] : make_starter(reference, chapters)) {
    entries.push_back({"project/" + file, text, false});
  }
  return make_zip(entries);
}

std::string github_workflow(const Project& reference, const std::string& repository) {
  if (!std::regex_match(repository, std::regex("[A-Za-z0-9._-]+/[A-Za-z0-9._-]+"))) {
    throw cli::UsageError("--repository expects OWNER/NAME, where the starter lies, found '" +
                          repository + "'");
  }
  std::string text = template_text(reference, "homework.yml");
  const std::string mark = "{{repository}}";
  return text.replace(text.find(mark), mark.size(), repository);
}

}  // namespace flash_steps::course

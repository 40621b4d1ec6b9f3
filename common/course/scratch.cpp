#include "common/course/scratch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <regex>
#include <set>

#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

// A starter's build knows todo(). -O1 compiles fast; warnings are the student's own build's
// business.
const std::vector<std::string> kOptions{"-DFLASH_STEPS_STARTER=ON", "-DFLASH_STEPS_NATIVE=OFF",
                                        "-DCMAKE_CXX_FLAGS=-w",
                                        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"};

// The answer, with #line so that errors name the lines of the student's file.
std::string numbered(const Answer& answer) {
  const auto lines = static_cast<int>(split_lines(answer.body).size());
  return fmt::format("#line {0} \"{1}\"\n{2}#line {3} \"{1}\"\n", answer.line + 1, answer.file,
                     answer.body, answer.line + lines + 1);
}

}  // namespace

Scratch::Scratch(const Project& project, const std::string& device)
    : project_(project),
      device_(device),
      folder_(project.scratch()),
      source_(folder_ / "source"),
      build_(folder_ / ("build-" + device)) {
  fs::create_directories(folder_);
  lock_ = open((folder_ / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
  fmt::print(stderr, "waiting for another `course` that works here ...\n");
  flock(lock_, LOCK_EX);
}

Scratch::~Scratch() { close(lock_); }

void Scratch::put(const std::map<std::string, Answer>& answers) {
  std::map<std::string, std::string> bodies;
  std::set<std::string> touched;
  for (const auto& [id, answer] : answers) {
    if (answer.body == project_.regions.at(id).body) continue;  // not compiled again for #line
    bodies[id] = numbered(answer);
    touched.insert(project_.regions.at(id).file);
  }
  for (const std::string& file : project_.files) {
    const std::string reference = project_.reference_text(file);
    write_if_changed(source_ / file, touched.contains(file)
                                         ? replace_bodies(file, reference, bodies)
                                         : reference);
  }
  for (const std::string& file : project_files(source_)) {
    if (!std::binary_search(project_.files.begin(), project_.files.end(), file)) {
      fs::remove(source_ / file);
    }
  }
}

BuildResult Scratch::run_step(const std::vector<std::string>& arguments, double seconds) {
  const fs::path log = folder_ / "build.log";
  const Ended ended = run({arguments, {{"LC_ALL", "C"}}, log, "", seconds, 0});
  BuildResult result{ended.exit_code == 0 && !ended.timed_out, ended.timed_out, {}};
  if (result.ok) return result;
  std::string output = read_file(log);
  for (std::size_t at; (at = output.find(source_.string() + "/")) != std::string::npos;) {
    output.erase(at, source_.string().size() + 1);
  }
  result.errors = find_errors(output, 4);
  return result;
}

// For this place: the folder may have been moved, or mounted into a container, since.
bool Scratch::is_configured() const {
  const fs::path cache = build_ / "CMakeCache.txt";
  if (!fs::exists(build_ / "build.ninja") || !fs::exists(cache)) return false;
  const std::string home = "CMAKE_HOME_DIRECTORY:INTERNAL=";
  for (const std::string& line : split_lines(read_file(cache))) {
    if (line.rfind(home, 0) != 0) continue;
    return fs::weakly_canonical(line.substr(home.size())) == fs::weakly_canonical(source_);
  }
  return false;
}

BuildResult Scratch::build(const std::vector<std::string>& targets) {
  if (!is_configured()) {
    fs::remove_all(build_);
    std::vector<std::string> configure{
        "cmake",         "-S", source_.string(), "-B",
        build_.string(), "-G", "Ninja",          "-DFLASH_STEPS_DEVICE=" + device_};
    configure.insert(configure.end(), kOptions.begin(), kOptions.end());
    const BuildResult configured = run_step(configure, 0);
    if (!configured.ok) {
      throw std::runtime_error("cmake cannot configure the scratch copy: see " +
                               (folder_ / "build.log").string());
    }
  }
  // the first time, chapters before this one and common/ are compiled along
  const bool first = std::any_of(targets.begin(), targets.end(), [&](const std::string& name) {
    return !fs::exists(program(name));
  });
  std::vector<std::string> command{"cmake", "--build", build_.string(), "--target"};
  command.insert(command.end(), targets.begin(), targets.end());
  return run_step(command, (first ? 10 : 1) * project_.manifest.limits.build_seconds);
}

std::vector<std::string> find_errors(const std::string& output, std::size_t most) {
  static const std::regex kError(
      R"((.*(: (fatal )?error|\): error|: error).*)|(.*undefined reference.*)|(.*multiple definition.*)|(ninja: error: .*))");
  std::vector<std::string> errors;
  for (const std::string& line : split_lines(output)) {
    if (errors.size() == most) break;
    if (line.size() >= 2000 || !std::regex_match(line, kError)) continue;
    const std::string error = line.substr(0, 240);  // a template's stands there for each type
    const bool known = std::find(errors.begin(), errors.end(), error) != errors.end();
    if (!known) errors.push_back(error);
  }
  return errors;
}

}  // namespace flash_steps::course

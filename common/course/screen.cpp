#include "common/course/screen.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace flash_steps::course {
namespace {

const char* sign(State state) {
  switch (state) {
    case State::not_started:
    case State::needs_gpu:
      return "..";
    case State::not_on_gpu:
    case State::done:
      return "ok";
    default:
      return "xx";
  }
}

const char* colour(State state) {
  switch (state) {
    case State::not_started:
    case State::needs_gpu:
      return "2";  // dim
    case State::not_on_gpu:
    case State::done:
      return "32";  // green
    default:
      return "31";  // red
  }
}

std::string bar(int done, int all) {
  constexpr int kWidth = 30;
  const int filled = all == 0 ? 0 : done * kWidth / all;
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(kWidth - filled), '.') + "]";
}

std::string what_it_needs(Needs needs) {
  return needs == Needs::cpu ? "C++" : needs == Needs::sim ? "CUDA" : "CUDA, on a GPU only";
}

// The simulator's complaints ask for other thoughts than a wrong number does.
std::string advice_on_wrong(const std::string& line) {
  const std::pair<const char*, const char*> kAdvice[] = {
      {"race: ",
       "Two threads meet at one word of shared memory: which barrier keeps them apart, or "
       "should only one of them touch it?"},
      {"divergent: ",
       "Not all threads come to that line: is it in a branch or loop that differs?"},
      {"out of bounds: ", "For which thread, and which size, does the index leave the array?"},
      {"deadlock: ",
       "Who is to change what that thread waits for, and has that one a chance to run?"}};
  for (const auto& [complaint, advice] : kAdvice) {
    if (line.find(complaint) != std::string::npos) return advice;
  }
  return "By hand, on the smallest size that fails: which step is the first to differ?";
}

std::string advice_on_error(const std::string& line) {
  if (line.find("no matching function") != std::string::npos)
    return "Do the arguments' types fit its declaration? A template may want its type named, "
           "as in f<T>(...).";
  return "Begin with the first error; the ones after it may follow from it.";
}

}  // namespace

Screen::Screen(const Project& project)
    : project_(project), colours_(isatty(1) == 1 && !std::getenv("NO_COLOR")) {}

std::string Screen::painted(State state, const std::string& text) const {
  return colours_ ? fmt::format("\033[{}m{}\033[0m", colour(state), text) : text;
}

std::string Screen::verdict(const Verdict& verdict, bool one_of_several) const {
  std::string text = painted(verdict.state, fmt::format("{}  {}: {}", sign(verdict.state),
                                                        verdict.id, to_string(verdict.state)));
  text += verdict.seconds >= 0.1 ? fmt::format("  ({:.1f} s)\n", verdict.seconds) : "\n";
  const bool good = passes(verdict.state) && verdict.points == verdict.most_points;
  const bool open = verdict.state == State::not_started || verdict.state == State::needs_gpu;
  if (one_of_several && (good || open)) return text;
  for (const std::string& line : verdict.lines) text += "      " + line + "\n";
  if (one_of_several) return text;
  if (const std::string more = advice(verdict); !more.empty()) {
    text += "      " + more + "\n";
  }
  return text;
}

std::string advice(const Verdict& verdict) {
  switch (verdict.state) {
    case State::not_started:
      return "An idea to begin with: course hint " + verdict.id;
    case State::does_not_compile:
      return advice_on_error(verdict.lines.empty() ? "" : verdict.lines.front());
    case State::crashed:
      return "An index out of range, or a pointer to nothing: print the sizes before the line "
             "that dies.";
    case State::timed_out:
      return "A loop that never ends: does its variable grow in every round?";
    case State::wrong:
      return advice_on_wrong(verdict.lines.empty() ? "" : verdict.lines.front());
    case State::needs_gpu:
      return "There: course check " + verdict.id;
    case State::not_on_gpu:
      return "Full points without a GPU. With one: course check " + verdict.id;
    case State::done:
      return "";
  }
  return "";
}

std::string Screen::list(const Submission& submission, const Progress& progress) const {
  int all = 0, finished = 0, points = 0, most = 0;  // of all but those for a GPU only
  std::string chapters;
  for (const Chapter& chapter : project_.manifest.chapters) {
    if (chapter.ids.empty()) continue;
    std::string lines;
    int here = 0, all_here = 0;
    for (const std::string& id : chapter.ids) {
      const GradedRegion& region = project_.manifest.region(id);
      const Standing now = standing(submission, progress, id);
      const bool gpu = region.needs == Needs::gpu;
      const bool passed = now.current && passes(now.state);
      const int worth = gpu ? 0 : region.points + region.traffic_points;
      here += passed && !gpu;
      all_here += !gpu;
      points += passed ? worth : 0;
      most += worth;
      const std::string state = now.current   ? to_string(now.state)
                                : now.checked ? "edited since it was: " + to_string(now.state)
                                              : "not checked yet";
      lines += painted(
          now.current ? now.state : State::not_started,
          fmt::format("  {}  {:<28} {:<5} {:>2}  {}{}\n", now.current ? sign(now.state) : "??",
                      id, region.needs == Needs::cpu ? "C++" : "CUDA",
                      gpu ? "-" : std::to_string(worth), state, gpu ? ", on a GPU only" : ""));
    }
    chapters += fmt::format("\n{} {}: {} of {}\n{}", chapter.number, chapter.title, here,
                            all_here, lines);
    finished += here;
    all += all_here;
  }
  return fmt::format("{}  {} of {} exercises, {} of {} points\n{}\nNow: course next\n",
                     bar(finished, all), finished, all, points, most, chapters);
}

std::string Screen::task(const Submission& submission, const std::string& id) const {
  const GradedRegion& region = project_.manifest.region(id);
  const Chapter& chapter = project_.manifest.chapter(region.chapter);
  const Answer& answer = submission.answers.at(id);
  const std::string where =
      answer.line > 0 ? fmt::format("{}:{}, between the marks", answer.file, answer.line)
                      : answer.problem;
  return fmt::format(
      "{}  ({}, {} point{})\n\n"
      "  what    {}\n"
      "  where   {}\n"
      "  read    chapters/{}/README.md\n"
      "  check   course check {}      or, at every save: course watch {}\n"
      "  stuck?  course hint {}\n",
      id, what_it_needs(region.needs), region.points, region.points == 1 ? "" : "s",
      region.todo, where, chapter.directory, id, id, id);
}

std::string first_open(const Project& project, const Submission& submission,
                       const Progress& progress, const std::string& chapter) {
  for (const std::string& id : project.manifest.ids()) {
    if (!chapter.empty() && project.manifest.region(id).chapter != chapter) continue;
    const Standing now = standing(submission, progress, id);
    const bool gpu_only =
        project.manifest.region(id).needs == Needs::gpu && now.state == State::not_started;
    if (gpu_only && !gpu_is_here()) continue;
    if (!now.current || !passes(now.state)) return id;
  }
  return "";
}

std::string Screen::next(const Submission& submission, const Progress& progress,
                         const std::string& chapter) const {
  const std::string id = first_open(project_, submission, progress, chapter);
  if (id.empty() && !chapter.empty())
    return "All exercises of chapter " + chapter + " pass. Now: course next\n";
  if (id.empty())
    return "All exercises pass. Nothing is left to do but to explain them to somebody.\n";
  std::string text = task(submission, id);
  const Standing now = standing(submission, progress, id);
  if (now.state == State::not_started) return text;
  text += fmt::format("\n  state   {}{}\n", to_string(now.state),
                      now.current ? "" : ", edited since");
  for (const std::string& line : now.lines) text += "          " + line + "\n";
  return text;
}

}  // namespace flash_steps::course

#include "common/course/watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>

#include "common/course/lessons.hpp"
#include "common/course/process.hpp"

namespace flash_steps::course {
namespace {

// Single keys from a terminal, as long as it lives.
class Keys {
 public:
  Keys() {
    terminal_ = tcgetattr(0, &before_) == 0;
    if (!terminal_) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(0, TCSANOW, &raw);
  }
  ~Keys() {
    if (terminal_) tcsetattr(0, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;

  bool terminal() const { return terminal_; }

  // The next key, or 0 if none comes for `milliseconds`.
  char wait(int milliseconds) {
    pollfd input{open_ ? 0 : -1, POLLIN, 0};
    char key = 0;
    if (poll(&input, 1, milliseconds) <= 0) return 0;
    if (read(0, &key, 1) <= 0) open_ = false;
    return key;
  }

 private:
  bool terminal_ = false, open_ = true;
  termios before_{};
};

class Watcher {
 public:
  Watcher(const Project& project, const CheckSettings& settings, const std::string& id)
      : project_(project), settings_(settings), progress_(project), screen_(project), id_(id) {
    live_ = isatty(1) == 1;
    settings_.progress = [this](const std::string& what) { show_progress(what); };
  }

  void run() {
    Submission now = read_submission(project_, project_.root);
    if (id_.empty()) id_ = first_open(project_, now, progress_);
    if (id_.empty()) id_ = project_.manifest.ids().front();
    say(screen_.task(now, id_));
    const Standing before = standing(now, progress_, id_);
    if (before.current && before.state == State::not_started) {
      wait_for_save(now);
    } else {
      check(now, id_);
    }
    help();
    for (char key = 0; key != 'q'; key = next_key()) {
      stop_if_interrupted();
      const Submission after = read_submission(project_, project_.root);
      press(key, after);
      if (again_ || after.answers.at(id_).body != now.answers.at(id_).body ||
          !same_problem(after, now)) {
        check(after, id_);
        help();
      } else {
        notice_others(after, now);
      }
      now = after;
    }
  }

 private:
  static void say(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  void help() const { say("\nn next   h hint   l list   c check all   q quit\n"); }

  // One line that is written over, on a terminal; elsewhere nothing.
  void show_progress(const std::string& what) const {
    if (live_) say("\r\033[K    " + what);
  }

  bool same_problem(const Submission& a, const Submission& b) const {
    return a.answers.at(id_).problem == b.answers.at(id_).problem;
  }

  char next_key() {
    const char key = pressed_ ? pressed_ : keys_.wait(300);
    pressed_ = 0;
    return key;
  }

  // Nobody waits for a loop without end: a save begins the check anew, q ends it. What else is
  // pressed has its turn afterwards.
  void check(const Submission& submission, const std::string& id) try {
    const fs::path file = project_.root / submission.answers.at(id).file;
    std::error_code error;
    const auto saved = fs::last_write_time(file, error);
    again_ = false;
    const InterruptIf interrupt([&] {
      if (keys_.terminal() && !pressed_) pressed_ = keys_.wait(0);
      again_ = id == id_ && fs::last_write_time(file, error) != saved;
      return again_ || pressed_ == 'q';
    });
    Checker checker(project_, settings_);
    const Verdict verdict = checker.check(submission, id);
    progress_.remember(verdict, submission.answers.at(id));
    if (live_) say("\r\033[K");
    say("\n" + screen_.verdict(verdict));
    if (id == id_ && passes(verdict.state)) say("      n goes on to the next one.\n");
  } catch (const Interrupted&) {
    if (is_told_to_end()) throw;
    if (live_) say("\r\033[K");
  }

  // Meanwhile the chapter's tests are compiled, so that the verdict comes soon after the save.
  void wait_for_save(const Submission& submission) {
    say("\nWaiting for you to save " + submission.answers.at(id_).file + ".\n");
    show_progress("compiling the chapter's tests");
    Checker(project_, settings_)
        .prepare({project_.manifest.chapter(project_.manifest.region(id_).chapter)});
    if (live_) say("\r\033[K");
  }

  // Somebody works at another exercise than the one that is watched.
  void notice_others(const Submission& after, const Submission& now) const {
    for (const auto& [id, answer] : after.answers) {
      if (answer.body == now.answers.at(id).body || id == id_) continue;
      say(fmt::format("\n{} was edited; watching {}. To check it: course check {}\n", id, id_,
                      id));
    }
  }

  void go_on(const Submission& submission) {
    const std::vector<std::string> ids = project_.manifest.ids();
    bool passed_current = false;
    for (int round = 0; round < 2; ++round) {  // from here to the end, then from the beginning
      for (const std::string& id : ids) {
        const Standing there = standing(submission, progress_, id);
        const bool open = !there.current || !passes(there.state);
        if ((passed_current || round == 1) && open && id != id_) {
          id_ = id;
          say("\n" + screen_.task(submission, id_));
          return wait_for_save(submission);
        }
        passed_current = passed_current || id == id_;
      }
    }
    say("\nNo other exercise is open.\n");
  }

  void press(char key, const Submission& submission) {
    switch (key) {
      case 'n':
        go_on(submission);
        break;
      case 'h':
        say("\n" + next_hint(project_, progress_, id_));
        break;
      case 'l':
        say("\n" + screen_.list(submission, progress_));
        break;
      case 'c':
        for (const std::string& id : project_.manifest.ids()) {
          if (!submission.answers.at(id).not_started) check(submission, id);
        }
        break;
      default:
        return;
    }
    help();
  }

  const Project& project_;
  CheckSettings settings_;
  Progress progress_;
  Screen screen_;
  std::string id_;
  Keys keys_;
  char pressed_ = 0;    // during a check
  bool again_ = false;  // the file was saved during a check
  bool live_ = false;
};

}  // namespace

void watch(const Project& project, const CheckSettings& settings, std::string id) {
  Watcher(project, settings, id).run();
}

std::string next_hint(const Project& project, Progress& progress, const std::string& id) {
  const std::vector<std::string> hints =
      parse_hints(project.reference_text(hints_file(project.manifest, id)), id);
  if (hints.empty()) return "There is no hint for " + id + ".\n";
  progress.give_hint(id);
  const std::size_t given =
      std::min(static_cast<std::size_t>(progress.hints(id)), hints.size());
  std::string text = id + "\n";
  for (std::size_t i = 0; i < given; ++i) {
    text += fmt::format("  {} of {}  {}\n", i + 1, hints.size(), plain_maths(hints[i]));
  }
  return text + (given == hints.size() ? "That is all; the lesson has the rest.\n"
                                       : "Another one: course hint " + id + "\n");
}

}  // namespace flash_steps::course

// What is remembered between two calls of `course`: hints given, and the last verdict on each
// id.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/course/check.hpp"

namespace flash_steps::course {

class Progress {
 public:
  explicit Progress(const Project& project);

  // The last verdict on exactly these lines; none if they were edited since.
  std::optional<Verdict> verdict(const std::string& id, const Answer& answer) const;
  // The state that the id was in before it was edited, if it was checked at all.
  std::optional<State> last_state(const std::string& id) const;
  void remember(const Verdict& verdict, const Answer& answer);

  // How many hints were given; one more from now on.
  int hints(const std::string& id) const;
  void give_hint(const std::string& id);

  // Keeps lines that are about to be replaced; returns where.
  fs::path back_up(const std::string& id, const std::string& body) const;

 private:
  struct Entry {
    std::uint64_t body = 0;
    State state = State::not_started;
    std::vector<std::string> lines;
    int hints = 0;
  };
  void load();
  void save() const;
  fs::path folder_;
  std::map<std::string, Entry> entries_;
};

// What is known about an id without building anything: from its text, else from the last check.
// The second is false where it was edited since, or never checked.
struct Standing {
  State state = State::not_started;
  bool current = false, checked = false;
  std::vector<std::string> lines;
};
Standing standing(const Submission& submission, const Progress& progress,
                  const std::string& id);

}  // namespace flash_steps::course

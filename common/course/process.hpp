// Child processes with limits. Tested code runs in them: it may crash, loop, or end at any
// moment.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace flash_steps::course {

struct Command {
  std::vector<std::string> arguments;              // the program first, looked for in PATH
  std::map<std::string, std::string> environment;  // beside what is there already
  std::filesystem::path output;                    // stdout and stderr
  std::string input;                               // of stdin, a few bytes
  double seconds = 0;                              // limit; 0: none
  int memory_gib = 0;                              // limit; 0: none
  std::filesystem::path directory = {};            // where it runs; empty: here
};

struct Ended {
  bool timed_out = false;
  int exit_code = 0;  // -1 if a signal ended it
  int signal = 0;
  double seconds = 0;
};

// A running child. It has a process group of its own, which ends with it: nothing that it
// started is left behind.
class Child {
 public:
  explicit Child(const Command& command);
  Child(const Child&) = delete;
  ~Child();

  // Whether it has ended by now; kills it once its time is over.
  bool ended();
  const Ended& result() const { return result_; }

 private:
  void kill_group() const;
  int pid_ = 0;
  double began_ = 0, limit_ = 0;
  bool over_ = false;
  Ended result_;
};

// Runs one to its end.
Ended run(const Command& command);

// From now on an interrupt (Ctrl-C) no longer ends this program on the spot, which would leave
// children running: it makes Child::ended and stop_if_interrupted throw Interrupted, once the
// child is gone.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};
void catch_interrupts();
void stop_if_interrupted();

// While this lives, `condition` interrupts, too. It is asked every few milliseconds while a
// child runs.
class InterruptIf {
 public:
  explicit InterruptIf(std::function<bool()> condition);
  ~InterruptIf();
  InterruptIf(const InterruptIf&) = delete;
};

// Whether it was Ctrl-C, or a signal like it: then there is no going on.
bool is_told_to_end();

// Seconds on a clock that only goes forward.
double now_seconds();

// "SIGSEGV (a bad memory access)"
std::string signal_text(int signal);

}  // namespace flash_steps::course

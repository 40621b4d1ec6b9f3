// Child processes: limits, signals, and that nothing is left behind.
#include <doctest/doctest.h>
#include <signal.h>

#include "common/course/files.hpp"
#include "common/course/process.hpp"
#include "tests/support/program.hpp"

using namespace flash_steps;
using namespace flash_steps::course;

namespace {

Ended shell(const test::TemporaryFolder& folder, const std::string& script,
            double seconds = 20) {
  return run({{"sh", "-c", script},
              {{"GREETING", "hello"}},
              folder.path() / "out",
              "from stdin\n",
              seconds,
              1});
}

}  // namespace

TEST_CASE("cpu: exit codes and output and input of a child") {
  const test::TemporaryFolder folder;
  const Ended ended = shell(folder, "read line; echo $GREETING $line; echo error >&2; exit 3");
  CHECK(ended.exit_code == 3);
  CHECK(ended.signal == 0);
  CHECK_FALSE(ended.timed_out);
  CHECK(read_file(folder.path() / "out") == "hello from stdin\nerror\n");
  CHECK(run({{"no-such-program"}, {}, folder.path() / "out", "", 5, 0}).exit_code == 127);
}

TEST_CASE("cpu: a child that crashes or loops is told apart") {
  const test::TemporaryFolder folder;
  const Ended crashed = shell(folder, "kill -SEGV $$");
  CHECK(crashed.signal == SIGSEGV);
  CHECK(crashed.exit_code == -1);
  CHECK(signal_text(SIGSEGV).find("SIGSEGV") == 0);
  const Ended looping = shell(folder, "while true; do :; done", 0.3);
  CHECK(looping.timed_out);
  CHECK(looping.seconds < 10);
}

TEST_CASE("cpu: a child that ends before it has read its input harms nobody") {
  const test::TemporaryFolder folder;
  for (int turn = 0; turn < 50; ++turn) {
    const Ended ended = run({{"true"}, {}, folder.path() / "out", "a token", 5, 0});
    CHECK(ended.exit_code == 0);
  }
  CHECK_THROWS_AS(run({{"true"}, {}, folder.path() / "out", std::string(100000, 'x'), 5, 0}),
                  std::runtime_error);
}

TEST_CASE("cpu: what a child started ends with it") {
  const test::TemporaryFolder folder;
  shell(folder, "sleep 30 & echo $!");
  const int pid = std::stoi(read_file(folder.path() / "out"));
  bool gone = false;
  for (int i = 0; i < 100 && !gone; ++i) {
    gone = kill(pid, 0) != 0 ||
           read_file("/proc/" + std::to_string(pid) + "/stat").find(" Z ") != std::string::npos;
    if (!gone) run({{"sleep", "0.05"}, {}, folder.path() / "x", "", 5, 0});
  }
  CHECK(gone);
}

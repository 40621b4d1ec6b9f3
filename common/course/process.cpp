#include "common/course/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

extern char** environ;

namespace flash_steps::course {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!more.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : more) result.push_back(name + "=" + value);
  return result;
}

constexpr int kMostMebibytes = 64;  // of a file that tested code writes

void limit(decltype(RLIMIT_AS) what, rlim_t value) {
  const rlimit both{value, value};
  setrlimit(what, &both);
}

[[noreturn]] void become(const Command& command, const std::vector<char*>& arguments,
                         char** environment, int input) {
  setpgid(0, 0);
  const int output = open(command.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(input, 0);
  dup2(output, 1);
  dup2(output, 2);
  close(input);
  close(output);
  if (!command.directory.empty() && chdir(command.directory.c_str()) != 0) _exit(127);
  limit(RLIMIT_CORE, 0);
  if (command.memory_gib > 0) {
    limit(RLIMIT_AS, static_cast<rlim_t>(command.memory_gib) << 30);
    limit(RLIMIT_FSIZE, rlim_t{kMostMebibytes} << 20);
  }
  environ = environment;
  execvp(arguments[0], arguments.data());
  _exit(127);
}

volatile std::sig_atomic_t interrupted = 0;
void note_interrupt(int) { interrupted = 1; }
std::function<bool()> interrupt_if;  // empty, but while an InterruptIf lives

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

bool is_told_to_end() { return interrupted; }

void stop_if_interrupted() {
  if (interrupted || (interrupt_if && interrupt_if())) throw Interrupted();
}

InterruptIf::InterruptIf(std::function<bool()> condition) {
  interrupt_if = std::move(condition);
}
InterruptIf::~InterruptIf() { interrupt_if = nullptr; }

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Child::Child(const Command& command) : began_(now_seconds()), limit_(command.seconds) {
  std::vector<std::string> arguments = command.arguments,
                           environment = merged_environment(command.environment);
  const std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);
  int input[2];
  if (pipe(input) != 0) throw std::runtime_error("cannot make a pipe");
  for (const int end : input) fcntl(end, F_SETFD, FD_CLOEXEC);
  // Into the pipe before there is a child: one that ends at once would end us, too, by SIGPIPE.
  const std::string text = command.input.substr(0, PIPE_BUF);  // more might wait for a reader
  const bool written =
      text.size() == command.input.size() &&
      write(input[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(input[1]);
  pid_ = written ? fork() : -1;
  if (pid_ == 0) become(command, argv, envp.data(), input[0]);
  close(input[0]);
  if (pid_ < 0) throw std::runtime_error("cannot start " + arguments[0]);
  setpgid(pid_, pid_);
}

Child::~Child() {
  if (over_) return;
  kill(-pid_, SIGTERM);  // a build takes back what it has half done
  bool reaped = false;
  const double end = now_seconds() + 1;
  while (now_seconds() < end && kill(-pid_, 0) == 0) {
    reaped = reaped || waitpid(pid_, nullptr, WNOHANG) == pid_;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  kill_group();
  if (!reaped) waitpid(pid_, nullptr, 0);
}

void Child::kill_group() const { kill(-pid_, SIGKILL); }

bool Child::ended() {
  if (over_) return true;
  stop_if_interrupted();  // ~Child ends the child
  int status = 0;
  pid_t changed = waitpid(pid_, &status, WNOHANG);
  result_.seconds = now_seconds() - began_;
  if (changed == 0 && limit_ > 0 && result_.seconds > limit_) {
    result_.timed_out = true;
    kill_group();
    changed = waitpid(pid_, &status, 0);
  }
  if (changed == 0) return false;
  over_ = true;
  kill_group();  // what it left running
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return true;
}

Ended run(const Command& command) {
  Child child(command);
  while (!child.ended()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  return child.result();
}

std::string signal_text(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV: memory was used that is not the program's";
    case SIGABRT:
      return "SIGABRT: an assertion, or an exception that nothing caught";
    case SIGFPE:
      return "SIGFPE: an integer was divided by zero";
    case SIGBUS:
      return "SIGBUS: a bad address";
    case SIGILL:
      return "SIGILL: the end of a function was reached without a return";
    case SIGXFSZ:
      return "SIGXFSZ: it wrote more than " + std::to_string(kMostMebibytes) + " MiB";
    case SIGKILL:
      return "SIGKILL: it was ended from outside, perhaps for want of memory";
    default:
      return std::string("signal ") + std::to_string(signal) + ": " + strsignal(signal);
  }
}

}  // namespace flash_steps::course

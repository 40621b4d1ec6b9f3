#include "common/cli/program.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

#include "common/cli/error.hpp"
#include "common/cli/options.hpp"
#include "common/tensor/npy.hpp"

namespace flash_steps::cli {
namespace {

constexpr int kDone = 0, kFailed = 1, kBadUsage = 2;

int fail(int exit_code, const std::string& message) {
  std::fputs(("error: " + one_line(message) + "\n").c_str(), stderr);
  return exit_code;
}

int run_body(int argc, const char* const* argv,
             const std::function<void(const Arguments&)>& body) {
  try {
    body(argc > 0 ? Arguments(argv + 1, argv + argc) : Arguments());
    return kDone;
  } catch (const HelpRequested& help) {
    std::fputs(help.text.c_str(), stdout);
    return kDone;
  } catch (const UsageError& error) {
    return fail(kBadUsage, error.what());
  } catch (const std::invalid_argument& error) {
    return fail(kBadUsage, error.what());
  } catch (const NpyWriteError& error) {
    return fail(kFailed, error.what());
  } catch (const NpyError& error) {
    return fail(kBadUsage, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "not enough memory");
  } catch (const std::length_error&) {  // a std::vector beyond all memory
    return fail(kFailed, "not enough memory");
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  } catch (...) {
    return fail(kFailed, "unknown exception");
  }
}

}  // namespace

int run_main(int argc, const char* const* argv,
             const std::function<void(const Arguments&)>& body) {
  const int exit_code = run_body(argc, argv, body);
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (exit_code != kDone || written) return exit_code;
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return fail(kFailed, "cannot write to stdout" + reason);
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code != 0x7f) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace flash_steps::cli

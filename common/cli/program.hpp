// The frame around every executable: exit codes, and errors as one line on stderr.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace flash_steps::cli {

// The command line without the program's name.
using Arguments = std::vector<std::string>;

// Runs `body` and turns how it ended into an exit code:
//
//   0  it returned, or --help was asked for
//   2  UsageError, std::invalid_argument, NpyError: bad usage or input, sizes that 64 bits
//      cannot count and an --out that is no usable directory among them: seen before the work
//   1  everything else: CheckFailed, a device error, memory that there is not, output that
//      could not be written
//
// Errors are exactly one line "error: ..." on stderr. stdout is flushed and checked at the
// end, so that a full disk is never taken for success.
int run_main(int argc, const char* const* argv,
             const std::function<void(const Arguments&)>& body);

// `text` on one line: each run of control characters, newlines among them, becomes one blank.
std::string one_line(const std::string& text);

}  // namespace flash_steps::cli

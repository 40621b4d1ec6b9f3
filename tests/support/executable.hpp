// The chapter's executable, run as a user would: its arguments, its files, and what must be so
// whatever the chapter is.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/npy_matrix.hpp"
#include "tests/support/device.hpp"
#include "tests/support/load.hpp"
#include "tests/support/program.hpp"
#include "tests/support/values.hpp"

namespace flash_steps::test {

using Arguments = std::vector<std::string>;

// "--order kv_outer" -> {"--order", "kv_outer"}.
inline Arguments words(const std::string& line) {
  std::istringstream stream(line);
  Arguments result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

inline Arguments joined(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline ProgramResult run(const Arguments& arguments, const Arguments& more = {}) {
  return run_program(FLASH_STEPS_PROGRAM, joined(arguments, more));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- what a run says

// It ended well, and these parts are on standard output.
inline void check_prints(const ProgramResult& r, std::initializer_list<std::string> parts) {
  CAPTURE(r.out);
  CAPTURE(r.err);
  CHECK(r.exit_code == 0);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(r.out, part));
  }
}
inline void check_prints(const ProgramResult& r, const std::string& part) {
  check_prints(r, {part});
}

// Bad usage or input is exit code 2 and one line on standard error, "error: ...", with these
// parts in it.
inline ProgramResult check_refused(const Arguments& arguments,
                                   std::initializer_list<std::string> parts) {
  std::string line;
  for (const std::string& argument : arguments) line += argument + " ";
  const ProgramResult r = run(arguments);
  CAPTURE(line);
  CAPTURE(r.err);
  CHECK(r.exit_code == 2);
  CHECK(r.err.rfind("error: ", 0) == 0);
  CHECK(r.err.find('\n') == r.err.size() - 1);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(r.err, part));
  }
  return r;
}
inline ProgramResult check_refused(const Arguments& arguments, const std::string& part) {
  return check_refused(arguments, {part});
}

// ---- files

// Writes an array into the folder, and gives its path.
inline std::string put(const TemporaryFolder& folder, const std::string& name,
                       const NpyArray& array) {
  write_npy(folder.file(name), array);
  return folder.file(name);
}

// --NAME FOLDER/NAME.npy for each of the names.
inline Arguments input_files(const std::filesystem::path& folder,
                             std::initializer_list<std::string> names) {
  Arguments arguments;
  for (const std::string& name : names) {
    arguments.insert(arguments.end(), {"--" + name, (folder / (name + ".npy")).string()});
  }
  return arguments;
}

// The same after the arrays have been written there.
inline Arguments put_inputs(const TemporaryFolder& folder,
                            std::initializer_list<std::pair<std::string, NpyArray>> inputs) {
  Arguments arguments;
  for (const auto& input : inputs) {
    arguments.insert(arguments.end(),
                     {"--" + input.first, put(folder, input.first + ".npy", input.second)});
  }
  return arguments;
}

// The inputs of a golden batch, with --causal and --scale as its results have them.
template <class Golden>
Arguments golden_inputs(const Golden& g, std::initializer_list<std::string> names) {
  Arguments arguments = input_files(g.folder, names);
  if (g.causal) arguments.push_back("--causal");
  if (g.scale) arguments.insert(arguments.end(), {"--scale", std::to_string(*g.scale)});
  return arguments;
}

// Runs on a device with --json, results into the folder `out`: it ends well, or there would be
// nothing to read there, and says where it ran.
inline ProgramResult run_on(const std::string& device, const Arguments& arguments,
                            const std::filesystem::path& out) {
  ProgramResult r = run(arguments, {"--device", device, "--out", out.string(), "--json"});
  CAPTURE(r.err);
  REQUIRE(r.exit_code == 0);
  CHECK(contains(r.out, "\"device\":\"" + device + "\""));
  return r;
}

// ---- executables that take one head: --q --k --v, or random numbers of --n --nk --d

// body(Nq, Nk, inputs, device) for no queries, no keys, and neither, d = 4, on every device
// that can run here.
template <class Body>
void each_empty_head(const TemporaryFolder& folder, const Body& body) {
  for (const auto& [Nq, Nk] : {std::pair<Index, Index>{0, 3}, {3, 0}, {0, 0}}) {
    const NpyArray q = to_npy(Floats(Floats::Ones(Nq, 4))),
                   k = to_npy(Floats(Floats::Ones(Nk, 4)));
    const Arguments inputs = put_inputs(folder, {{"q", q}, {"k", k}, {"v", k}});
    for (const std::string& device : usable_devices()) body(Nq, Nk, inputs, device);
  }
}

// What all of them refuse. `more` goes with the query that has no keys.
inline void check_refused_heads(const Arguments& more = {}) {
  const TemporaryFolder folder;
  const auto ones = [&](const std::string& name, Index rows, Index cols) {
    return put(folder, name, to_npy(Floats(Floats::Ones(rows, cols))));
  };
  const Matrix<double> f8 = Matrix<double>::Ones(3, 4);
  const std::string q = ones("q.npy", 2, 4), k = ones("k.npy", 3, 4),
                    k_narrow = ones("k_narrow.npy", 3, 5),
                    k_double = put(folder, "k_double.npy", to_npy(f8));
  check_refused(joined({"--q", q}, more), "--k");
  check_refused({"--q", q, "--k", k, "--v", folder.file("none.npy")}, "none.npy");
  check_refused({"--q", q, "--k", k_narrow, "--v", k}, "k_narrow.npy: dimension 1 (d) is 5");
  check_refused({"--q", q, "--k", k_double, "--v", k}, "k_double.npy is f8");
  check_refused({"--q", q, "--k", k, "--v", k, "--n", "4"}, "--n");
  check_refused(words("--br 0"), "--br");
  check_refused(words("--d 257"), "--d");
  check_refused({"--device", other_device(), "--n", "4"}, other_device());
}

}  // namespace flash_steps::test

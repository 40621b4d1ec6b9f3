// The options of an executable, declared in a line each and bound to variables.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cli/program.hpp"
#include "common/cli/value.hpp"

namespace flash_steps::cli {

// Options::parse met --help. run_main prints the text and ends with exit code 0.
struct HelpRequested : std::exception {
  explicit HelpRequested(std::string help) : text(std::move(help)) {}
  const char* what() const noexcept override { return "help requested"; }
  std::string text;
};

// Declares options, then reads a command line into the variables that they are bound to:
//
//   cli::Options options("03_tiled_forward", "One Q tile walks all K/V tiles.");
//   options.group("Input");
//   options.add("--q", q_path, "queries, .npy [N, d]");
//   options.add("--br", br, "rows of a Q tile", {1, 1024});
//   options.parse(arguments);
//
// A variable keeps its value when its option is not given; --help shows that value as the
// default. An option is written `--name value` or `--name=value`, at most once. Whatever is
// wrong with a command line is a UsageError: one sentence that names the option.
class Options {
 public:
  Options(const std::string& program, const std::string& summary);
  ~Options();

  // The heading in --help of the options that follow.
  void group(const std::string& title);

  // An option with a value: std::string, std::int64_t, std::uint64_t or double, or a
  // std::optional of one. How numbers are read: value.hpp.
  template <class T>
  void add(const std::string& name, T& value, const std::string& help) {
    declare({name, placeholder(value), help, "", value_text(value)},
            [&value, name](const std::string& text) { parse_value(name, text, value); });
  }

  // An integer within a range.
  template <class T>
  void add(const std::string& name, T& value, const std::string& help, Range range) {
    declare({name, placeholder(value), help, range.text(), value_text(value)},
            [&value, name, range](const std::string& text) {
              parse_value(name, text, value, range);
            });
  }

  // A std::string, or an optional one, that is one word out of `choices`.
  template <class T>
  void add_choice(const std::string& name, T& value, const std::vector<std::string>& choices,
                  const std::string& help) {
    std::string words;
    for (const std::string& choice : choices) words += (words.empty() ? "" : "|") + choice;
    declare({name, words, help, "", value_text(value)},
            [&value, name, choices](const std::string& text) {
              parse_value(name, text, value, choices);
            });
  }

  // A switch without a value: true once given.
  void add_flag(const std::string& name, bool& value, const std::string& help);

  // All of these options or none: {"--q", "--k", "--v"}.
  void all_or_none(const std::vector<std::string>& names);

  // None of `those` together with any of `these`: input files, and sizes of random input.
  void exclusive(const std::vector<std::string>& these, const std::vector<std::string>& those);

  // A command line for the end of --help.
  void example(const std::string& command_line);

  // Reads the command line. Throws UsageError, or HelpRequested for --help.
  void parse(const Arguments& arguments);

  // After parse: whether this option was on the command line.
  bool given(const std::string& name) const;

  // After parse: whether anything was. If not, a chapter runs its demonstration.
  bool any_given() const;

  // The text of --help.
  std::string help() const;

 private:
  struct Declaration {
    std::string name, placeholder, help, limits, default_value;
  };
  using Store = std::function<void(const std::string& text)>;
  void declare(const Declaration& declaration, Store store);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flash_steps::cli

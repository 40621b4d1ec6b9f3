// The values of options: from text to a variable, strictly.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flash_steps::cli {

// Largest size that an option takes: the product of two fits a signed 64-bit index.
inline constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

// The integers that an option accepts.
struct Range {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();

  // "from 1 to 256", ">= 1" or "". The upper bound kMaxSize is left out unless asked for: it
  // matters only to someone who went beyond it.
  std::string text(bool with_max = false) const;
};

// Reads the whole of `text` into `value`. An integer is decimal digits after an optional minus,
// a real number is decimal and finite; blanks, a plus in front, "0x10", and for an integer
// "1.5" and "1e3", are errors. Throws UsageError, one sentence that begins with the option's
// name.
void parse_value(const std::string& name, const std::string& text, std::string& value);
void parse_value(const std::string& name, const std::string& text, std::int64_t& value,
                 Range range = {});
void parse_value(const std::string& name, const std::string& text, std::uint64_t& value);
void parse_value(const std::string& name, const std::string& text, double& value);
// One word out of `choices`.
void parse_value(const std::string& name, const std::string& text, std::string& value,
                 const std::vector<std::string>& choices);

// An optional is read as the type that it holds, within the same limits.
template <class T, class... Limits>
void parse_value(const std::string& name, const std::string& text, std::optional<T>& value,
                 const Limits&... limits) {
  T parsed{};
  parse_value(name, text, parsed, limits...);
  value = std::move(parsed);
}

// The value as --help shows it; "" for none.
std::string value_text(const std::string& value);
std::string value_text(std::int64_t value);
std::string value_text(std::uint64_t value);
std::string value_text(double value);
template <class T>
std::string value_text(const std::optional<T>& value) {
  return value ? value_text(*value) : "";
}

// What stands for the value in --help.
inline const char* placeholder(const std::string&) { return "PATH"; }
inline const char* placeholder(std::int64_t) { return "N"; }
inline const char* placeholder(std::uint64_t) { return "N"; }
inline const char* placeholder(double) { return "X"; }
template <class T>
const char* placeholder(const std::optional<T>&) {
  return placeholder(T{});
}

// {"a", "b", "c"} and " or " -> "a, b or c".
std::string enumerate(const std::vector<std::string>& words, const std::string& last_separator);

}  // namespace flash_steps::cli

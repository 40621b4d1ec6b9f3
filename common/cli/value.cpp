#include "common/cli/value.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include "common/cli/error.hpp"

namespace flash_steps::cli {
namespace {

[[noreturn]] void expects(const std::string& name, const std::string& expected,
                          const std::string& found) {
  throw UsageError(fmt::format("{} expects {}, found '{}'", name, expected, found));
}

// The whole of `text` as an integer; std::errc{} on success.
template <class Integer>
std::errc read_integer(const std::string& text, Integer& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return stop == end ? error : std::errc::invalid_argument;
}

}  // namespace

std::string Range::text(bool with_max) const {
  constexpr Range any;
  const bool bounded = max != kMaxSize && max != any.max;
  if (with_max || (min > any.min && bounded)) {
    return fmt::format("from {} to {}", min, max);
  }
  if (min > any.min) return fmt::format(">= {}", min);
  if (bounded) return fmt::format("<= {}", max);
  return "";
}

void parse_value(const std::string&, const std::string& text, std::string& value) {
  value = text;
}

void parse_value(const std::string& name, const std::string& text, std::int64_t& value,
                 Range range) {
  const std::errc error = read_integer(text, value);
  const bool is_number = error == std::errc{};
  if (is_number && range.min <= value && value <= range.max) return;
  const bool beyond =
      error == std::errc::result_out_of_range || (is_number && value > range.max);
  const std::string limits = range.text(beyond);
  expects(name, limits.empty() ? "an integer" : "an integer " + limits, text);
}

void parse_value(const std::string& name, const std::string& text, std::uint64_t& value) {
  if (read_integer(text, value) != std::errc{}) {
    expects(name, fmt::format("an integer from 0 to {}", ~std::uint64_t{0}), text);
  }
}

void parse_value(const std::string& name, const std::string& text, double& value) {
  // strtod alone would also take blanks, "+1", "0x1p3", "inf" and "nan"
  const bool decimal = text.find_first_not_of("0123456789.eE+-") == std::string::npos &&
                       !text.empty() && text.front() != '+';
  char* stop = nullptr;
  errno = 0;
  value = std::strtod(text.c_str(), &stop);
  if (!decimal || stop != text.c_str() + text.size()) expects(name, "a finite number", text);
  if (errno == ERANGE && (value == 0 || std::isinf(value))) {
    expects(name, "a number within the range of float64", text);
  }
}

void parse_value(const std::string& name, const std::string& text, std::string& value,
                 const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    expects(name, enumerate(choices, " or "), text);
  }
  value = text;
}

std::string value_text(const std::string& value) { return value; }
std::string value_text(std::int64_t value) { return fmt::format("{}", value); }
std::string value_text(std::uint64_t value) { return fmt::format("{}", value); }
std::string value_text(double value) { return fmt::format("{}", value); }

std::string enumerate(const std::vector<std::string>& words,
                      const std::string& last_separator) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : last_separator;
    text += words[i];
  }
  return text;
}

}  // namespace flash_steps::cli

// Reading the report that a test run leaves (tests/support/report.hpp).
#include <fmt/format.h>

#include <regex>
#include <set>
#include <utility>

#include "common/course/test_run.hpp"

namespace flash_steps::course {
namespace {

struct Report {
  int cases = 0, assertions = 0, failed = 0;  // of the case that was asked for
  bool skipped = false;
  std::string where, what;                                   // of the first failure
  std::vector<std::pair<std::string, std::string>> context;  // "r := 3" as {"r", "3"}
};

// Some compilers' NaN has a sign, which says nothing.
std::string without_sign_of_nan(const std::string& text) {
  return std::regex_replace(text, std::regex("-nan\\b"), "nan");
}

Report parse(const std::vector<std::string>& lines, const std::string& name) {
  Report report;
  for (const std::string& line : lines) {
    const std::size_t blank = line.find(' ');
    const std::string field = line.substr(0, blank),
                      value = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (field == "case" && value == name) ++report.cases;
    if (field == "assertions") report.assertions += std::stoi(value);
    if (field == "failed") report.failed += std::stoi(value);
    if (field == "skipped") report.skipped = true;
    if (field == "where") report.where = value;
    if (field == "what") report.what = without_sign_of_nan(value);
    if (field == "context") {
      const std::size_t sign = value.find(" := ");
      const bool named = sign != std::string::npos;
      report.context.emplace_back(named ? value.substr(0, sign) : "",
                                  without_sign_of_nan(named ? value.substr(sign + 4) : value));
    }
  }
  return report;
}

// "actual[i]" is captured as "actual".
std::string base(const std::string& name) { return name.substr(0, name.find('[')); }

// The first of these that the test captured; "" if it captured none.
std::string captured(const Report& report, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const auto& [key, value] : report.context) {
      if (base(key) == name) return value;
    }
  }
  return "";
}

std::string element_name(const Report& report) {
  const std::string r = captured(report, {"r"}), c = captured(report, {"c"});
  if (!r.empty() && !c.empty()) return "(" + r + ", " + c + ")";
  return captured(report, {"i", "r"});
}

// The first wrong element, expected and got, where the test compared arrays: check_close and
// its kind capture where it lies (r and c, or i) and both values (e or expected, a or actual).
// Else what was asserted. Then the other captures: sizes, as a rule.
std::vector<std::string> describe(const Report& report) {
  const std::string expected = captured(report, {"e", "expected"}),
                    got = captured(report, {"a", "actual"});
  const bool element = !expected.empty() && !got.empty();
  std::vector<std::string> lines{
      element ? fmt::format("first wrong element {}: expected {}, got {}", element_name(report),
                            expected, got)
              : report.what};
  static const std::set<std::string> kElement{"r",      "c", "i",        "a",
                                              "actual", "e", "expected", "tolerance"};
  std::string others;
  for (const auto& [name, value] : report.context) {
    if (element && kElement.contains(base(name))) continue;
    others += (others.empty() ? "with " : ", ") + (name.empty() ? value : name + " = " + value);
  }
  if (!others.empty()) lines.push_back(others);
  const std::size_t tests = report.where.rfind("tests/");
  if (tests != std::string::npos) lines.push_back("at " + report.where.substr(tests));
  return lines;
}

}  // namespace

TestResult read_report(const std::string& text, const std::string& token,
                       const std::string& name) {
  TestResult result;
  result.name = name;
  result.outcome = Outcome::ended;
  const std::vector<std::string> lines = split_lines(text);
  if (lines.empty() || lines[0] != "token " + token) return result;
  const Report report = parse(lines, name);
  result.assertions = report.assertions;
  if (report.cases == 1 && report.failed > 0) {
    const bool todo = report.what.find("not started: ") != std::string::npos;
    result.outcome = todo ? Outcome::not_started : Outcome::failed;
    result.details = describe(report);
  } else if (report.cases == 1 && report.skipped) {
    result.outcome = Outcome::skipped;
    result.details = {"skipped: it needs a GPU"};
  } else if (report.cases != 1 || report.assertions == 0) {
    result.outcome = Outcome::empty;
    result.details = {report.cases == 0 ? "there is no such test"
                                        : "the test asserted nothing"};
  } else {
    result.outcome = Outcome::passed;
  }
  return result;
}

}  // namespace flash_steps::course

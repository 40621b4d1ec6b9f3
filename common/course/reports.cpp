#include "common/course/reports.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace flash_steps::course {
namespace {

using Json = nlohmann::ordered_json;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

Json test_json(const TestResult& test) {
  return {{"name", test.name},
          {"outcome", to_string(test.outcome)},
          {"assertions", test.assertions},
          {"seconds", test.seconds},
          {"details", test.details}};
}

Json grade_json(const Grade& grade) {
  Json ids = Json::array();
  for (const Verdict& verdict : grade.verdicts) {
    Json tests = Json::array(), traffic = Json::array();
    for (const TestResult& test : verdict.tests) tests.push_back(test_json(test));
    for (const TestResult& test : verdict.traffic) traffic.push_back(test_json(test));
    ids.push_back({{"id", verdict.id},
                   {"state", to_string(verdict.state)},
                   {"points", verdict.points},
                   {"most_points", verdict.most_points},
                   {"lines", verdict.lines},
                   {"tests", tests},
                   {"traffic", traffic}});
  }
  return {{"submission", grade.submission},
          {"seed", grade.seed},
          {"points", grade.points()},
          {"most_points", grade.most_points()},
          {"seconds", grade.seconds},
          {"changed_outside", grade.changed_outside},
          {"ids", ids}};
}

// Text of JSON from bytes that a tested program may have written.
std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string escaped(const std::string& text) {
  std::string xml;
  // names may be in any alphabet; bytes that are no UTF-8 are replaced
  const auto replace = Json::error_handler_t::replace;
  const auto valid = Json::parse(Json(text).dump(-1, ' ', false, replace)).get<std::string>();
  for (const char c : valid) {
    if (c == '&') {
      xml += "&amp;";
    } else if (c == '<') {
      xml += "&lt;";
    } else if (c == '>') {
      xml += "&gt;";
    } else if (c == '"') {
      xml += "&quot;";
    } else {
      const bool printable = static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t';
      xml += printable && c != 0x7f ? c : '?';
    }
  }
  return xml;
}

std::string junit_case(const std::string& id, const std::string& name, double seconds,
                       const std::string& failure) {
  const std::string head =
      fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"", escaped(id),
                  escaped(name), seconds);
  if (failure.empty()) return head + "/>\n";
  return head +
         fmt::format(">\n   <failure message=\"{}\"/>\n  </testcase>\n", escaped(failure));
}

std::string csv_field(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string to_json(const std::vector<Grade>& grades) {
  if (grades.size() == 1) return dump(grade_json(grades.front()));
  Json all = Json::array();
  for (const Grade& grade : grades) all.push_back(grade_json(grade));
  return dump(all);
}

std::string to_junit(const std::vector<Grade>& grades) {
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const Grade& grade : grades) {
    std::string cases;
    int tests = 0, failures = 0;
    const auto add = [&](const Verdict& v, const std::string& name, double seconds,
                         const std::string& failure) {
      cases += junit_case(v.id, name, seconds, failure);
      ++tests;
      failures += !failure.empty();
    };
    for (const Verdict& verdict : grade.verdicts) {
      for (const auto* list : {&verdict.tests, &verdict.traffic}) {
        for (const TestResult& t : *list) {
          const bool passed = t.outcome == Outcome::passed;
          add(verdict, t.name, t.seconds,
              passed ? "" : to_string(t.outcome) + ": " + joined(t.details));
        }
      }
      if (verdict.tests.empty() && verdict.most_points > 0) {
        add(verdict, verdict.id, 0, to_string(verdict.state) + ": " + joined(verdict.lines));
      }
    }
    xml += fmt::format(
        " <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" time=\"{:.3f}\">\n{} "
        "</testsuite>\n",
        escaped(grade.submission), tests, failures, grade.seconds, cases);
  }
  return xml + "</testsuites>\n";
}

std::string to_csv(const std::vector<Grade>& grades) {
  std::string csv;
  for (const Grade& grade : grades) {
    if (csv.empty()) {
      csv = "submission,points,most_points";
      for (const Verdict& verdict : grade.verdicts) csv += "," + verdict.id;
      csv += "\n";
    }
    csv += fmt::format("{},{},{}", csv_field(grade.submission), grade.points(),
                       grade.most_points());
    for (const Verdict& verdict : grade.verdicts) csv += fmt::format(",{}", verdict.points);
    csv += "\n";
  }
  return csv;
}

std::string to_gradescope(const Project& project, const Grade& grade) {
  Json tests = Json::array();
  int number = 0, finished = 0;
  for (const Verdict& verdict : grade.verdicts) {
    ++number;
    finished += passes(verdict.state);
    if (verdict.most_points == 0) continue;  // needs a GPU
    const GradedRegion& region = project.manifest.region(verdict.id);
    tests.push_back({{"name", fmt::format("{} ({})", verdict.id, to_string(region.needs))},
                     {"number", std::to_string(number)},
                     {"score", verdict.points},
                     {"max_score", verdict.most_points},
                     {"status", verdict.points == verdict.most_points ? "passed" : "failed"},
                     {"output", to_string(verdict.state) + "\n" + joined(verdict.lines)},
                     {"output_format", "text"},
                     {"visibility", "visible"}});
  }
  std::string output = fmt::format(
      "Graded with the data of seed {}. The same again, in your own tree: "
      "course check --seed {}",
      grade.seed, grade.seed);
  if (!grade.changed_outside.empty()) {
    output += "\nChanges outside the marks do not count:\n" + joined(grade.changed_outside);
  }
  const Json leaderboard = Json::array({{{"name", "finished"}, {"value", finished}}});
  return dump({{"score", grade.points()},
               {"execution_time", static_cast<int>(grade.seconds)},
               {"output", output},
               {"visibility", "visible"},
               {"tests", tests},
               {"leaderboard", leaderboard},
               {"extra_data", {{"seed", grade.seed}}}});
}

std::string to_text(const Grade& grade) {
  std::string text = fmt::format("{}, data of seed {}\n", grade.submission, grade.seed);
  for (const Verdict& verdict : grade.verdicts) {
    text += fmt::format("  {:<28} {:>2} of {:>2}  {}\n", verdict.id, verdict.points,
                        verdict.most_points, to_string(verdict.state));
    if (passes(verdict.state) && verdict.points == verdict.most_points) continue;
    const bool todo = verdict.state == State::not_started && !verdict.missing;
    for (const std::string& line : verdict.lines) text += todo ? "" : "      " + line + "\n";
  }
  for (const std::string& line : grade.changed_outside) {
    text += "  changed outside the marks, does not count: " + line + "\n";
  }
  return text + fmt::format("  {} of {} points, {:.0f} s\n", grade.points(),
                            grade.most_points(), grade.seconds);
}

}  // namespace flash_steps::course

#include "tests/support/report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace flash_steps::test {
namespace {

struct CaseReport {
  std::string name;
  int assertions = 0, failed = 0;
  std::string where, what;
  std::vector<std::string> context;
};

std::string path, token;
std::vector<CaseReport> cases;
std::mutex mutex;  // an assertion may fail on any thread

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' || c == '\r' ? ' ' : c;
  return line;
}

struct Listener : doctest::IReporter {
  explicit Listener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& data) override {
    cases.emplace_back().name = data.m_name;
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    cases.back().assertions = stats.numAssertsCurrentTest;
    cases.back().failed =
        stats.testCaseSuccess ? 0 : std::max(1, stats.numAssertsFailedCurrentTest);
  }
  void test_case_exception(const doctest::TestCaseException& e) override {
    note("", std::string("threw ") + e.error_string.c_str());
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& data) override {
    if (!data.m_failed) return;
    const std::string asserted =
        std::string(doctest::assertString(data.m_at)) + "( " + data.m_expr + " )";
    note(place(data.m_file, data.m_line),
         asserted + (data.m_threw ? " threw " + std::string(data.m_exception.c_str())
                                  : " is " + std::string(data.m_decomp.c_str())));
  }
  void log_message(const doctest::MessageData& data) override {
    if (data.m_severity == doctest::assertType::is_warn) return;
    note(place(data.m_file, data.m_line), data.m_string.c_str());
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  static std::string place(const char* file, int line) {
    return std::string(file) + ":" + std::to_string(line);
  }

  // The first failure of a case is the one to look at.
  static void note(const std::string& where, const std::string& what) {
    const std::lock_guard lock(mutex);
    if (cases.empty() || !cases.back().what.empty()) return;
    CaseReport& report = cases.back();
    report.where = where;
    report.what = what;
    for (int i = 0; i < get_num_active_contexts(); ++i) {
      std::ostringstream text;
      get_active_contexts()[i]->stringify(&text);
      report.context.push_back(text.str());
    }
    if (!report.context.empty()) return;
    for (int i = 0; i < get_num_stringified_contexts(); ++i) {  // of an exception
      report.context.emplace_back(get_stringified_contexts()[i].c_str());
    }
  }
};
REGISTER_LISTENER("report", 1, Listener);

}  // namespace

void read_report_request() {
  const char* requested = std::getenv("FLASH_STEPS_REPORT");
  if (!requested) return;
  path = requested;
  unsetenv("FLASH_STEPS_REPORT");
  std::getline(std::cin, token);
}

bool write_report(bool skipped) {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << "token " << token << "\n";
  for (const CaseReport& c : cases) {
    file << "case " << one_line(c.name) << "\nassertions " << c.assertions << "\nfailed "
         << c.failed << "\n";
    if (skipped) file << "skipped\n";
    if (!c.where.empty()) file << "where " << one_line(c.where) << "\n";
    if (!c.what.empty()) file << "what " << one_line(c.what) << "\n";
    for (const std::string& text : c.context) file << "context " << one_line(text) << "\n";
    file << "end\n";
  }
  file.close();
  return !file.fail();
}

}  // namespace flash_steps::test

// The main of every test program: doctest's, with its blind spots closed.
//   0   all cases passed
//   1   a case failed, or nothing was checked at all: no case, or no assertion (doctest would
//   pass) 77  a case asked to be skipped; ctest shows it as skipped, never as passed
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>

#include "tests/support/report.hpp"
#include "tests/support/skip.hpp"

namespace {

// Counts what doctest keeps to itself.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases = stats.numTestCasesPassingFilters;
    assertions = stats.numAsserts;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
  inline static unsigned cases = 0;
  inline static int assertions = 0;
};
REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

int main(int argc, char** argv) {
  flash_steps::test::read_report_request();
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (context.shouldExit()) return failed;  // a query such as --list-test-cases
  if (!flash_steps::test::write_report(flash_steps::test::skipped())) {
    std::cerr << "error: the report cannot be written\n";
    return 1;
  }
  if (failed) return 1;
  if (flash_steps::test::skipped()) return 77;
  if (Counter::cases == 0 || Counter::assertions == 0) {
    std::cerr << "error: no case ran, or none asserted anything\n";
    return 1;
  }
  return 0;
}

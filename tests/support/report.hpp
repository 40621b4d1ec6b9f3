// What the course tool (common/course) reads of a test run. An exit code alone proves nothing:
// tested code may call exit(0). So whoever starts a test program with FLASH_STEPS_REPORT=FILE
// writes a token to its standard input, and FILE with that token in it appears only when the
// run has come to its end:
//
//   token 5f0e...
//   case cpu: the worked example of the lesson
//   assertions 12
//   failed 1
//   where tests/04_causal_skipping.cpp:96
//   what CHECK( a == b ) is CHECK( 1 == 2 )
//   context r := 3
//   end
//
// A case lasts until `end`; where, what and context are of the first failure, on one line each.
#pragma once

namespace flash_steps::test {

// Takes the request out of the environment and the token out of standard input. To be called
// before any test.
void read_report_request();

// After the last test: writes the report, if one was asked for. False if it cannot.
bool write_report(bool skipped);

}  // namespace flash_steps::test

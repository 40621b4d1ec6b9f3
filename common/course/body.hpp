// What can be said about a region's lines without compiling them.
#pragma once

#include <optional>
#include <string>

namespace flash_steps::course {

// The same lines with blanks in the place of comments and of what stands in quotes.
std::string code_only(const std::string& text);

// Nothing but comments, or a todo() is still there.
bool is_not_started(const std::string& body);

struct BodyProblem {
  int line;  // of the body, counted from 1
  std::string what;
};

// Why these lines cannot stand between the marks, if so: a brace that closes what was opened
// outside, or is never closed (then the lines would reach beyond the marks), a preprocessor
// line (which could change the tests) other than #pragma unroll, or what hides one of these: a
// line that ends in a backslash, a digraph, a comment or literal that is never closed.
std::optional<BodyProblem> find_body_problem(const std::string& body);

}  // namespace flash_steps::course

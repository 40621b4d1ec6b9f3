#include "common/course/body.hpp"

#include <algorithm>
#include <regex>
#include <vector>

#include "common/course/files.hpp"

namespace flash_steps::course {
namespace {

char closing(char open) { return open == '(' ? ')' : open == '[' ? ']' : '}'; }

// The end of what begins at i: a comment or a literal; i itself if it is neither.
std::size_t skip_end(const std::string& text, std::size_t i) {
  const auto after = [&](const std::string& mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == std::string::npos ? text.size() : found + mark.size();
  };
  if (text.compare(i, 2, "//") == 0) return std::min(text.find('\n', i), text.size());
  if (text.compare(i, 2, "/*") == 0) return after("*/", i + 2);
  if (text.compare(i, 2, "R\"") == 0) {
    const std::size_t open = text.find('(', i);
    if (open == std::string::npos) return text.size();
    return after(")" + text.substr(i + 2, open - i - 2) + "\"", open);
  }
  const bool separator =
      i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));  // 1'000
  if (text[i] != '"' && (text[i] != '\'' || separator)) return i;
  std::size_t k = i + 1;
  while (k < text.size() && text[k] != text[i] && text[k] != '\n') k += text[k] == '\\' ? 2 : 1;
  return std::min(k + 1, text.size());
}

}  // namespace

std::string code_only(const std::string& text) {
  std::string code = text;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = skip_end(text, i);
    if (end == i) {
      ++i;
      continue;
    }
    for (; i < end; ++i) {
      if (text[i] != '\n') code[i] = ' ';
    }
  }
  return code;
}

bool is_not_started(const std::string& body) {
  static const std::regex kTodo(R"(\btodo\s*\()");
  const std::string code = code_only(body);
  return trimmed(code).empty() || std::regex_search(code, kTodo);
}

std::optional<BodyProblem> find_body_problem(const std::string& body) {
  static const std::regex kPragma(R"(\s*#\s*pragma\s+unroll\b.*)");
  const std::string code = code_only(body);
  struct Open {
    char bracket;
    int line;
  };
  std::vector<Open> open;
  int number = 0;
  for (const std::string& line : split_lines(code)) {
    ++number;
    if (trimmed(line).rfind("#", 0) == 0 || trimmed(line).rfind("%:", 0) == 0) {
      if (!std::regex_match(line, kPragma)) {
        return BodyProblem{number, "no line with # may stand here but #pragma unroll"};
      }
    }
    for (const char c : line) {
      if (c == '(' || c == '[' || c == '{') open.push_back({c, number});
      if (c != ')' && c != ']' && c != '}') continue;
      if (open.empty() || closing(open.back().bracket) != c) {
        return BodyProblem{number,
                           std::string("this '") + c + "' closes nothing between the marks"};
      }
      open.pop_back();
    }
  }
  if (open.empty()) return std::nullopt;
  return BodyProblem{open.back().line,
                     std::string("this '") + open.back().bracket + "' is never closed"};
}

}  // namespace flash_steps::course

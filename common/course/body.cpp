#include "common/course/body.hpp"

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <vector>

#include "common/course/files.hpp"

namespace flash_steps::course {
namespace {

char closing(char open) { return open == '(' ? ')' : open == '[' ? ']' : '}'; }

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The letters and digits right before i: the prefix of a literal, or a number.
std::string word_before(const std::string& text, std::size_t i) {
  std::size_t begin = i;
  while (begin > 0 && (in_word(text[begin - 1]) || text[begin - 1] == '\'')) --begin;
  return text.substr(begin, i - begin);
}

// Behind the first `mark` at or after `from`; npos if there is none.
std::size_t after(const std::string& text, const std::string& mark, std::size_t from) {
  const std::size_t found = text.find(mark, from);
  return found == std::string::npos ? found : found + mark.size();
}

// The end of what begins at i: a comment or a literal; i itself if it is neither; npos if it is
// never closed.
std::size_t skip_end(const std::string& text, std::size_t i) {
  if (text.compare(i, 2, "//") == 0) return std::min(text.find('\n', i), text.size());
  if (text.compare(i, 2, "/*") == 0) return after(text, "*/", i + 2);
  if (text[i] != '"' && text[i] != '\'') return i;
  const std::string word = word_before(text, i);
  if (text[i] == '\'' && !word.empty() && std::isdigit(static_cast<unsigned char>(word[0])))
    return i;  // 1'000
  static const std::set<std::string> kRaw{"R", "LR", "uR", "UR", "u8R"};
  if (text[i] == '"' && kRaw.contains(word)) {
    const std::size_t open = text.find('(', i);
    if (open == std::string::npos) return open;
    return after(text, ")" + text.substr(i + 1, open - i - 1) + "\"", open);
  }
  std::size_t k = i + 1;
  while (k < text.size() && text[k] != text[i] && text[k] != '\n') k += text[k] == '\\' ? 2 : 1;
  return k < text.size() && text[k] == text[i] ? k + 1 : std::string::npos;
}

struct Masked {
  std::string code;                          // blanks for comments and literals
  std::size_t unclosed = std::string::npos;  // where one begins that never ends
};

Masked mask(const std::string& text) {
  Masked masked{text};
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = skip_end(text, i);
    if (end == std::string::npos && masked.unclosed == end) masked.unclosed = i;
    const std::size_t stop = std::min(end, text.size());
    if (stop == i) ++i;
    for (; i < stop; ++i) {
      if (text[i] != '\n') masked.code[i] = ' ';
    }
  }
  return masked;
}

int line_of(const std::string& text, std::size_t position) {
  return 1 + static_cast<int>(
                 std::count(text.begin(), text.begin() + std::ptrdiff_t(position), '\n'));
}

// What would have compilers read these lines otherwise than this file does.
std::optional<BodyProblem> find_trick(const std::string& body, const Masked& masked) {
  int number = 0;
  for (const std::string& line : split_lines(body)) {
    ++number;
    const std::size_t last = line.find_last_not_of(" \t\v\f\r");
    if (last != std::string::npos && line[last] == '\\')
      return BodyProblem{number, "no line may end in \\ here"};
  }
  for (const char* digraph : {"<%", "%>", "%:"}) {
    const std::size_t at = masked.code.find(digraph);
    if (at != std::string::npos)
      return BodyProblem{line_of(body, at),
                         "write { } # for " + std::string(digraph) + ", or put blanks into it"};
  }
  if (masked.unclosed == std::string::npos) return std::nullopt;
  return BodyProblem{line_of(body, masked.unclosed),
                     "the comment or literal that begins here is never closed"};
}

}  // namespace

std::string code_only(const std::string& text) { return mask(text).code; }

bool is_not_started(const std::string& body) {
  static const std::regex kTodo(R"(\btodo\s*\()");
  const std::string code = code_only(body);
  return trimmed(code).empty() || std::regex_search(code, kTodo);
}

std::optional<BodyProblem> find_body_problem(const std::string& body) {
  static const std::regex kPragma(R"(\s*#\s*pragma\s+unroll\b.*)");
  const Masked masked = mask(body);
  const std::string& code = masked.code;
  if (const auto trick = find_trick(body, masked)) return trick;
  struct Open {
    char bracket;
    int line;
  };
  std::vector<Open> open;
  int number = 0;
  for (const std::string& line : split_lines(code)) {
    ++number;
    const std::size_t first = line.find_first_not_of(" \t\v\f");
    if (first != std::string::npos && line[first] == '#' &&
        !std::regex_match(line.substr(0, 200), kPragma))
      return BodyProblem{number, "no line with # may stand here but #pragma unroll"};
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

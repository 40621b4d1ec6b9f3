#include "common/tensor/npy_header.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "common/tensor/npy.hpp"

namespace flash_steps::detail {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }

bool is_digit(char c) { return '0' <= c && c <= '9'; }

// What a Python number or name is made of, so that "3L", "1.5" and "-2" are each one word.
bool is_word(char c) {
  return is_digit(c) || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_' ||
         c == '.' || c == '+' || c == '-';
}

// Python's rule: 0 may be repeated, but another number has no leading zero.
bool is_integer(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, is_digit) &&
         (word[0] != '0' || std::ranges::all_of(word, [](char c) { return c == '0'; }));
}

// A recursive-descent parser, except that nothing here nests. Every method skips the white
// space before what it reads.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  // { key : value , ... }
  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    if (!at_end()) fail("text after the closing brace: " + rest());
    if (!descr_) fail("no key 'descr'");
    if (!fortran_order_) fail("no key 'fortran_order'");
    if (!shape_) fail("no key 'shape'");
    return {*descr_, *fortran_order_, *shape_};
  }

 private:
  void entry() {
    const std::string key = string_literal();
    expect(':');
    if (key == "descr") {
      store(descr_, key, descr());
    } else if (key == "fortran_order") {
      store(fortran_order_, key, boolean());
    } else if (key == "shape") {
      store(shape_, key, shape());
    } else {
      fail("unknown key " + shown(key));
    }
  }

  template <class T>
  void store(std::optional<T>& value, const std::string& key, T found) {
    if (value) fail("key " + shown(key) + " twice");
    value = std::move(found);
  }

  std::string descr() {
    if (peek() == '[') fail("structured dtypes (a list in 'descr') are not supported");
    return string_literal();
  }

  // No escapes: no valid key or dtype needs one.
  std::string string_literal() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("expected a quoted string, found " + rest());
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) fail("a string without its closing quote: " + rest());
    const std::string_view value = text_.substr(position_ + 1, end - position_ - 1);
    if (value.find_first_of("\\\n") != std::string_view::npos) {
      fail("a string with an escape or a line break: " + rest());
    }
    position_ = end + 1;
    return std::string(value);
  }

  bool boolean() {
    const std::string_view found = word();
    if (found != "True" && found != "False") fail("'fortran_order' must be True or False");
    return found == "True";
  }

  // () or (3,) or (3, 4) or (3, 4,)
  std::vector<std::int64_t> shape() {
    if (peek() != '(') fail("'shape' must be a tuple, found " + rest());
    expect('(');
    std::vector<std::int64_t> sizes;
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fail("expected ',' or ')' in 'shape', found " + rest());
      sizes.push_back(size());
      comma = accept(',');
    }
    // in Python (3) is a number in parentheses
    if (sizes.size() == 1 && !comma) fail("'shape' must be a tuple; one size is written (3,)");
    return sizes;
  }

  std::int64_t size() {
    const std::size_t start = position_;
    const std::string_view found = word();
    if (found.starts_with('-') && is_integer(found.substr(1))) {
      fail("negative size " + shown(found) + " in 'shape'");
    }
    if (!is_integer(found)) {
      position_ = start;
      fail("sizes in 'shape' must be integers, found " +
           (found.empty() ? rest() : shown(found)));
    }
    std::int64_t value = 0;
    const auto result = std::from_chars(found.data(), found.data() + found.size(), value);
    if (result.ec != std::errc()) {
      fail("size " + shown(found) + " in 'shape' does not fit in 64 bits");
    }
    return value;
  }

  std::string_view word() {
    peek();
    const std::size_t start = position_;
    while (position_ < text_.size() && is_word(text_[position_])) ++position_;
    return text_.substr(start, position_ - start);
  }

  // The next character that is not white space, or 0 at the end; it stays unread.
  char peek() {
    while (position_ < text_.size() && is_space(text_[position_])) {
      ++position_;
    }
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool at_end() {
    peek();
    return position_ == text_.size();
  }

  bool accept(char c) {
    if (at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "', found " + rest());
  }

  std::string rest() {
    return at_end() ? "the end of the header" : shown(text_.substr(position_));
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw NpyError(name_ + ": bad header: " + reason);
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t position_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const std::string& name) {
  return HeaderParser(text, name).parse();
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) result += (' ' <= c && c <= '~') ? c : '?';
  return result + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace flash_steps::detail

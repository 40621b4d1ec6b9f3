// What --json prints: one object, built up key by key.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace flash_steps::cli {

// A value of a Report: whatever a result can be. An empty optional is null.
class Value {
 public:
  using Data = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double,
                            std::string, std::vector<Value>>;

  Value(std::nullptr_t) : data(nullptr) {}
  Value(bool value) : data(value) {}
  Value(std::signed_integral auto value) : data(std::int64_t{value}) {}
  Value(std::unsigned_integral auto value) : data(std::uint64_t{value}) {}
  Value(std::floating_point auto value) : data(static_cast<double>(value)) {}
  Value(const char* value) : data(std::string(value)) {}
  Value(std::string value) : data(std::move(value)) {}
  template <class T>
  Value(const std::vector<T>& values)
      : data(std::vector<Value>(values.begin(), values.end())) {}
  template <class T>
  Value(const std::optional<T>& value) : Value(value ? Value(*value) : Value(nullptr)) {}

  Data data;
};

// Where a value goes: "lse", or {"algorithms", "standard", "reads"} for objects inside
// objects.
struct Key {
  Key(const char* name) : names{name} {}
  Key(std::string name) : names{std::move(name)} {}
  Key(std::initializer_list<const char*> path) : names(path.begin(), path.end()) {}

  std::vector<std::string> names;
};

// A JSON object whose keys stay in the order of their first `set`. Finite numbers are printed
// so that reading them gives the same bits; the others are the strings "nan", "inf" and
// "-inf".
class Report {
 public:
  Report();
  ~Report();

  // A second `set` of the same key replaces the value.
  void set(const Key& key, const Value& value);

  // The object on one line, without a newline.
  std::string text() const;

  // Prints text() and a newline to stdout.
  void print() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flash_steps::cli

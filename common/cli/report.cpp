// The only file that includes nlohmann/json.
#include "common/cli/report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/cli/print.hpp"

namespace flash_steps::cli {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Value& value);

Json to_json(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

Json to_json(const std::vector<Value>& values) {
  Json array = Json::array();
  for (const Value& value : values) array.push_back(to_json(value));
  return array;
}

template <class Plain>
Json to_json(const Plain& value) {
  return value;
}

Json to_json(const Value& value) {
  return std::visit([](const auto& data) { return to_json(data); }, value.data);
}

}  // namespace

struct Report::Impl {
  Json root = Json::object();
};

Report::Report() : impl_(std::make_unique<Impl>()) {}
Report::~Report() = default;

void Report::set(const Key& key, const Value& value) {
  Json* place = &impl_->root;
  for (const std::string& name : key.names) {
    if (!place->is_object() && !place->is_null()) {
      throw std::logic_error("Report: '" + name + "' would stand inside a plain value");
    }
    place = &(*place)[name];
  }
  *place = to_json(value);
}

std::string Report::text() const {
  // a path need not be UTF-8, JSON must be
  return impl_->root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Report::print() const { cli::print("{}\n", text()); }

}  // namespace flash_steps::cli

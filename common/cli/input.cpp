#include "common/cli/input.hpp"

#include <fmt/format.h>

#include "common/cli/error.hpp"

namespace flash_steps::cli {
namespace {

const char* allowed_dtypes(Content content) {
  switch (content) {
    case Content::kData:
      return "f4 or f8";
    case Content::kTable:
      return "i4 or i8";
    case Content::kMask:
      return "u1";
  }
  return "";
}

bool is_number(const std::string& name) {
  return name.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Input read_input(const std::string& path, const std::string& option, Content content) {
  try {
    Input input{path, read_npy(path)};
    const std::string dtype = dtype_name(input.array), allowed = allowed_dtypes(content);
    if (allowed.find(dtype) == std::string::npos) {
      throw UsageError(fmt::format("{} is {}, expected {}", path, dtype, allowed));
    }
    return input;
  } catch (const NpyError& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

void require_same_dtype(const std::vector<const Input*>& inputs) {
  for (const Input* input : inputs) {
    const Input& first = *inputs.front();
    if (input->array.data.index() != first.array.data.index()) {
      throw UsageError(fmt::format("{} is {}, but {} is {}", input->file,
                                   dtype_name(input->array), first.file,
                                   dtype_name(first.array)));
    }
  }
}

void Dimensions::require(const Input& input, const std::vector<std::string>& names) {
  const std::vector<std::int64_t>& shape = input.array.shape;
  if (shape.size() != names.size()) {
    throw UsageError(fmt::format("{}: expected [{}], found {}", input.file,
                                 fmt::join(names, ", "), shape_text(shape)));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (is_number(name)) {
      if (std::to_string(shape[i]) != name) {
        throw UsageError(
            fmt::format("{}: dimension {} is {}, expected {}", input.file, i, shape[i], name));
      }
      continue;
    }
    const auto& [first, is_new] = seen_.try_emplace(name, Seen{shape[i], input.file, i});
    const Seen& seen = first->second;
    if (seen.size != shape[i]) {
      throw UsageError(fmt::format("{}: dimension {} ({}) is {}, but {} has {} = {}",
                                   input.file, i, name, shape[i], seen.file, name, seen.size));
    }
  }
}

void Dimensions::require_range(const std::string& name, std::int64_t min,
                               std::int64_t max) const {
  const Seen& seen = seen_.at(name);
  if (seen.size < min || seen.size > max) {
    throw UsageError(fmt::format("{}: dimension {} ({}) is {}, expected {} to {}", seen.file,
                                 seen.index, name, seen.size, min, max));
  }
}

}  // namespace flash_steps::cli

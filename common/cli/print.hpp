// Formatted output to stdout; the one place where {fmt} meets the chapters.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <utility>

namespace flash_steps::cli {

// print("l = {:.4f}\n", l). Throws std::system_error when stdout cannot be written.
template <class... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stdout, format, std::forward<Args>(args)...);
}

}  // namespace flash_steps::cli

// The two ways in which an executable says no.
#pragma once

#include <stdexcept>

namespace flash_steps::cli {

// Bad usage or bad input: the caller has to change something. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Two computations that must agree do not. Exit code 1.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace flash_steps::cli

// Cases that need a GPU on a machine without one.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>

#include "common/device/array.hpp"

namespace flash_steps::test {

inline bool& skipped() {
  static bool value = false;
  return value;
}

// True if the device of this build can run; otherwise marks the case as skipped, or fails it
// where the environment says that a GPU is expected (FLASH_STEPS_REQUIRE_GPU=1). A device case
// starts with
//   if (!have_device()) return;
inline bool have_device() {
  if (device_available()) return true;
  const char* required = std::getenv("FLASH_STEPS_REQUIRE_GPU");
  if (required && *required && *required != '0')
    FAIL("FLASH_STEPS_REQUIRE_GPU is set, but there is no GPU");
  MESSAGE("skipped: this build runs kernels on a GPU, and there is none");
  skipped() = true;
  return false;
}

}  // namespace flash_steps::test

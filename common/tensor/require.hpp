// Preconditions that hold in every build, unlike assert. No Eigen: nvcc reads this file too.
#pragma once

#include <stdexcept>
#include <string>

namespace flash_steps {

// Throws std::invalid_argument(message) unless ok. The message says what must hold, with the
// values found where they help: "K must be (Nk, d) = (4, 8), found (4, 7)".
inline void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

// The same for a literal, so that a check that passes builds no string.
inline void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

}  // namespace flash_steps

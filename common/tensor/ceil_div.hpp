// How many tiles cover a length. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

namespace flash_steps {

// The smallest integer >= a / b, for b > 0 and any a; ceil_div(Nq, Br) is the papers' Tr.
// Written without a + b - 1, which overflows for a large a.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

}  // namespace flash_steps

// The sizes of the statistics. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {

// m, l and LSE have one number for each of the Nq queries. Throws std::invalid_argument naming
// the one that does not fit.
inline void require_statistics_sizes(std::int64_t m, std::int64_t l, std::int64_t LSE,
                                     std::int64_t Nq) {
  const auto check = [Nq](const char* name, std::int64_t size) {
    if (size == Nq) return;
    require(false, std::string(name) + " must be [" + std::to_string(Nq) + "], found [" +
                       std::to_string(size) + "]");
  };
  check("m", m);
  check("l", l);
  check("LSE", LSE);
}

}  // namespace flash_steps

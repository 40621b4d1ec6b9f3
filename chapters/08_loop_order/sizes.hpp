// Sizes of statistics, and sums of counts. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chapters/02_io_counting/predict.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

// Throws std::invalid_argument, naming the vector, unless it has the expected size.
inline void require_size(const char* name, std::int64_t found, std::int64_t expected) {
  if (found == expected) return;
  require(false, std::string(name) + " must be [" + std::to_string(expected) + "], found [" +
                     std::to_string(found) + "]");
}

inline Counts sum(const std::vector<Counts>& parts) {
  Counts total;
  for (const Counts& part : parts) {
    total.reads += part.reads;
    total.writes += part.writes;
    total.statistics_reads += part.statistics_reads;
    total.statistics_writes += part.statistics_writes;
  }
  return total;
}

}  // namespace flash_steps

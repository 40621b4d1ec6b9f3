// From device_traffic(), in bytes, to Counts, for kernels that always move statistics.
#pragma once

#include "chapters/02_io_counting/predict.hpp"
#include "common/device/array.hpp"

namespace flash_steps {

// What a kernel on float32 data moved, from its traffic on matrices of d columns, and on others
// of the same rows and tiles with another number of columns. The device cannot tell one float
// from another, but what moves of Q, K, V and O grows with the columns, and what moves of m, l
// and LSE does not.
inline Counts tell_apart(const Traffic& traffic, std::int64_t d, const Traffic& other_traffic,
                         std::int64_t other_d) {
  const auto data = [&](std::int64_t bytes, std::int64_t other_bytes) {
    return (bytes - other_bytes) / (d - other_d) * d / 4;
  };
  Counts counts;
  counts.reads = data(traffic.read_bytes, other_traffic.read_bytes);
  counts.writes = data(traffic.written_bytes, other_traffic.written_bytes);
  counts.statistics_reads = traffic.read_bytes / 4 - counts.reads;
  counts.statistics_writes = traffic.written_bytes / 4 - counts.writes;
  return counts;
}

}  // namespace flash_steps

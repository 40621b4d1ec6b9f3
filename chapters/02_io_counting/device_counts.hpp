// From device_traffic(), in bytes, to Counts.
#pragma once

#include <optional>

#include "chapters/02_io_counting/predict.hpp"
#include "common/device/array.hpp"

namespace flash_steps {

// What kernels on float32 data move, as the device counts it; nothing on a GPU, which does not
// count. run(true) launches them with statistics, run(false) without: the device cannot tell
// one float from another, so the statistics are what the first moves beyond the second.
template <class Run>
std::optional<Counts> count_on_device(const Run& run) {
  const auto traffic = [&](bool statistics) {
    reset_device_traffic();
    run(statistics);
    synchronize_device();
    return device_traffic();
  };
  const auto all = traffic(true);
  if (!all) return std::nullopt;
  const auto data = traffic(false);
  return Counts{.reads = data->read_bytes / 4,
                .writes = data->written_bytes / 4,
                .statistics_reads = (all->read_bytes - data->read_bytes) / 4,
                .statistics_writes = (all->written_bytes - data->written_bytes) / 4};
}

}  // namespace flash_steps

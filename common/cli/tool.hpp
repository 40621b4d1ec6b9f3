// What the tools of several chapters decide and report by --device, --br and --bc.
#pragma once

#include <cstdint>
#include <string>

#include "common/cli/common_options.hpp"
#include "common/cli/report.hpp"
#include "common/device/array.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps::cli {

// The name of the device that computes: "cpu", the simulator's or the GPU's.
inline std::string computing_device(const CommonOptions& common) {
  return common.device == "cpu" ? "cpu" : device_name();
}

// The bytes that default tiles have to fit: a block's shared memory, on the CPU an H100's.
inline std::int64_t tile_bytes(const CommonOptions& common) {
  return common.device == "cpu" ? 232448 : device_limits().shared_bytes_per_block;
}

// --br and --bc, where they are given.
inline Tiling chosen_tile(const CommonOptions& common, Tiling otherwise) {
  return {common.br.value_or(otherwise.Br), common.bc.value_or(otherwise.Bc)};
}

// How every report begins.
inline void report_start(Report& report, const char* chapter, const CommonOptions& common) {
  report.set("chapter", chapter);
  report.set("device", common.device);
  report.set("device_name", computing_device(common));
}

inline void report_attention(Report& report, Tiling tile, double scale, bool causal) {
  report.set("br", tile.Br);
  report.set("bc", tile.Bc);
  report.set("scale", scale);
  report.set("causal", causal);
}

}  // namespace flash_steps::cli

// The parts that splits leave on the device, and their merge. No Eigen: nvcc and the host
// compiler both read this file.
#pragma once

#include <cstdint>

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "common/device/array.hpp"
#include "common/device/heads.hpp"

namespace flash_steps {

// Scratch memory of a decoding on the device: the twin of SplitParts. It may serve any number
// of calls of the same sizes; between them it says nothing.
struct DeviceSplitParts {
  DeviceSplitParts(std::int64_t splits, std::int64_t rows, std::int64_t d);

  DeviceMatrix<float> O;               // (splits * rows, d)
  DeviceMatrix<float> LSE;             // (splits, rows)
  DeviceArray<std::uint32_t> arrived;  // (rows), 0: how many parts of a block's rows are there
};

// The twin of merge_splits_cpu in float32, a block to a row. Asynchronous on a GPU. Throws
// std::invalid_argument for shapes that do not fit each other, or more splits than kMaxSplits.
void merge_splits_cuda(DeviceSplitParts& parts, DeviceHeads<float>& O, DeviceMatrix<float>& LSE,
                       Merge merge);

}  // namespace flash_steps

// What decoding moves, as a formula. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "chapters/09_flash_decoding/splits.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {

// In elements.
struct DecodingTraffic {
  std::int64_t keys_values;                // read: what decoding cannot do without
  std::int64_t queries;                    // read: Q, once for each split that has keys
  std::int64_t outputs;                    // written: O and LSE
  std::int64_t parts_written, parts_read;  // the price of splitting

  constexpr std::int64_t reads() const { return keys_values + queries + parts_read; }
  constexpr std::int64_t writes() const { return outputs + parts_written; }
};

// What the kernels move without a mask: every split that has keys makes a part of every row.
constexpr DecodingTraffic predict_decoding(const DecodingSizes& sizes, Tiling tile,
                                           std::int64_t splits, Merge merge) {
  const std::int64_t rows = sizes.rows(), d = sizes.d;
  const std::int64_t Tr = ceil_div(sizes.group_rows(), tile.Br);
  const std::int64_t used = used_splits(sizes.Nk, tile.Bc, splits);
  // [begin 09.predict]
  DecodingTraffic traffic{};
  traffic.keys_values = sizes.B * sizes.Hkv * Tr * 2 * sizes.Nk * d;
  traffic.queries = used * rows * d;
  traffic.outputs = rows * (d + 1);
  // an empty split has an LSE, but no o that anybody writes or reads
  traffic.parts_written = splits * rows + used * rows * d;
  traffic.parts_read = traffic.parts_written;
  if (merge == Merge::tree && used > 0) {  // used - 1 merges of two into one, then one is read
    traffic.parts_read = splits * rows + (2 * (used - 1) + 1) * rows * d;
    traffic.parts_written += (used - 1) * rows * d;
  }
  // [end]
  return traffic;
}

}  // namespace flash_steps

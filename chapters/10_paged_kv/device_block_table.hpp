// A block table on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include <cstdint>

#include "chapters/10_paged_kv/block_table.hpp"
#include "common/device/array.hpp"

namespace flash_steps {

// The entries and lengths of a BlockTable, checked on the host before they are copied: kernels
// follow an id without looking at it. One such table serves all layers of a model, whose caches
// grow together, so it is checked and copied once a token and not once a call.
class DeviceBlockTable {
 public:
  // For pools of `blocks` blocks of block_size tokens. Throws std::invalid_argument as
  // require_block_table does, or for more than 2^31 blocks: ids have 4 bytes on the device.
  DeviceBlockTable(const BlockTable& table, std::int64_t blocks, std::int64_t block_size);

  std::int64_t B() const { return ids_.rows(); }
  std::int64_t max_blocks() const { return ids_.cols(); }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t block_size() const { return block_size_; }
  std::int64_t longest() const { return longest_; }               // length of a sequence
  const DeviceMatrix<std::int32_t>& ids() const { return ids_; }  // (B, max_blocks)
  const DeviceArray<std::int64_t>& seq_lens() const { return seq_lens_; }  // (B)

 private:
  std::int64_t blocks_, block_size_, longest_;
  DeviceMatrix<std::int32_t> ids_;  // -1 where an entry is not in use
  DeviceArray<std::int64_t> seq_lens_;
};

}  // namespace flash_steps

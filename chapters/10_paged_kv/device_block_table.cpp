#include "chapters/10_paged_kv/device_block_table.hpp"

#include <limits>
#include <string>
#include <vector>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

// The table, once it is known to be right, in 4 bytes an entry.
std::vector<std::int32_t> narrow_ids(const BlockTable& table, std::int64_t blocks,
                                     std::int64_t block_size) {
  require_block_table(table, blocks, block_size);
  constexpr std::int64_t kMost = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  require(blocks <= kMost,
          "a table on the device knows blocks up to 2147483647, but the pool "
          "has " +
              std::to_string(blocks));
  std::vector<std::int32_t> ids(table.ids.size(), -1);
  for (std::int64_t b = 0; b < table.B; ++b) {
    const std::int64_t used = ceil_div(table.seq_len(b), block_size);
    for (std::int64_t entry = 0; entry < used; ++entry) {
      ids[static_cast<std::size_t>(b * table.max_blocks + entry)] =
          static_cast<std::int32_t>(table.id(b, entry));
    }
  }
  return ids;
}

}  // namespace

DeviceBlockTable::DeviceBlockTable(const BlockTable& table, std::int64_t blocks,
                                   std::int64_t block_size)
    : blocks_(blocks),
      block_size_(block_size),
      longest_(table.longest()),
      ids_(narrow_ids(table, blocks, block_size).data(), table.B, table.max_blocks),
      seq_lens_(table.seq_lens) {}

}  // namespace flash_steps

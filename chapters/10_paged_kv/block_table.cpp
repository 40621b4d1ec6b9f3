#include "chapters/10_paged_kv/block_table.hpp"

#include <algorithm>
#include <string>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

void require_count(const char* what, std::size_t found, const std::string& expected_text,
                   std::int64_t expected) {
  if (static_cast<std::int64_t>(found) == expected) return;
  require(false, std::string("the ") + what + " must have " + expected_text +
                     " entries, found " + std::to_string(found));
}

void require_sizes(const BlockTable& table, std::int64_t block_size) {
  const std::string B = std::to_string(table.B), width = std::to_string(table.max_blocks);
  require(table.B >= 0 && table.max_blocks >= 0,
          "a block table cannot be [" + B + ", " + width + "]");
  require_count("block table", table.ids.size(), B + " * " + width, table.B * table.max_blocks);
  require_count("lengths", table.seq_lens.size(), B, table.B);
  require(block_size >= 1,
          "block_size must be at least 1, found " + std::to_string(block_size));
}

[[noreturn]] void refuse_length(const BlockTable& table, std::int64_t b,
                                std::int64_t block_size) {
  throw std::invalid_argument(
      "sequence " + std::to_string(b) + " cannot have " + std::to_string(table.seq_len(b)) +
      " tokens: its row of the block table has room for " + std::to_string(table.max_blocks) +
      " blocks of " + std::to_string(block_size));
}

[[noreturn]] void refuse_id(const BlockTable& table, std::int64_t b, std::int64_t entry,
                            std::int64_t blocks) {
  const std::string valid =
      blocks == 0 ? "has no blocks" : "has blocks 0 to " + std::to_string(blocks - 1);
  throw std::invalid_argument("entry " + std::to_string(entry) + " of sequence " +
                              std::to_string(b) + " in the block table is " +
                              std::to_string(table.id(b, entry)) + ", but the pool " + valid);
}

}  // namespace

std::int64_t BlockTable::longest() const {
  return seq_lens.empty() ? 0 : *std::max_element(seq_lens.begin(), seq_lens.end());
}

void require_block_table(const BlockTable& table, std::int64_t blocks,
                         std::int64_t block_size) {
  require_sizes(table, block_size);
  for (std::int64_t b = 0; b < table.B; ++b) {
    // [begin 10.require-table]
    const std::int64_t used = ceil_div(table.seq_len(b), block_size);
    if (table.seq_len(b) < 0 || used > table.max_blocks) refuse_length(table, b, block_size);
    for (std::int64_t entry = 0; entry < used; ++entry) {  // not one further
      const std::int64_t id = table.id(b, entry);
      if (id < 0 || id >= blocks) refuse_id(table, b, entry, blocks);
    }
    // [end]
  }
}

}  // namespace flash_steps

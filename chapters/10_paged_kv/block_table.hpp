// Which block of a pool holds which tokens of a sequence. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <vector>

namespace flash_steps {

// Token j of sequence b is slot j % block_size of block id(b, j / block_size). Of a row of the
// table only the first ceil(seq_lens[b] / block_size) entries are in use; the others may hold
// anything, and nobody reads them.
struct BlockTable {
  std::int64_t B = 0, max_blocks = 0;
  std::vector<std::int64_t> ids;       // [B, max_blocks], each from 0 to blocks - 1
  std::vector<std::int64_t> seq_lens;  // [B], each from 0 to max_blocks * block_size

  std::int64_t id(std::int64_t b, std::int64_t entry) const {
    return ids[static_cast<std::size_t>(b * max_blocks + entry)];
  }
  std::int64_t seq_len(std::int64_t b) const { return seq_lens[static_cast<std::size_t>(b)]; }
  std::int64_t longest() const;  // of the sequences; 0 without any
};

// Throws std::invalid_argument unless ids and seq_lens have the sizes that B and max_blocks
// say, every length fits into its row, and every entry in use is a block of a pool of `blocks`
// blocks of block_size >= 1 tokens. The sentence names the first sequence, entry and value that
// is wrong, and what would be right. Two entries with the same id are right: sequences may
// share blocks.
void require_block_table(const BlockTable& table, std::int64_t blocks, std::int64_t block_size);

}  // namespace flash_steps

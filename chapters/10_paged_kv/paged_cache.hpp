// Who gets which block: the sequences of a cache, their growth, and what they share. Integers
// only; append_token.hpp moves the keys and values.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "chapters/10_paged_kv/block_table.hpp"

namespace flash_steps {

// Every block of the pool is in use.
struct OutOfBlocks : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The place of a new token: slot `slot` of block `block`. The earlier tokens of that block,
// slots 0 .. slot - 1, must be copied from block copy_from before, unless that is -1.
struct NewSlot {
  std::int64_t block, slot, copy_from;
};

// Up to B sequences that share a pool. Each block knows how many of them use it; one that
// nobody uses is free. What throws changes nothing.
class PagedCache {
 public:
  // All sequences are empty, and all blocks free. Throws std::invalid_argument for a negative
  // size, or block_size < 1.
  PagedCache(std::int64_t B, std::int64_t max_blocks, std::int64_t blocks,
             std::int64_t block_size);

  const BlockTable& table() const { return table_; }  // entries not in use are -1
  std::int64_t blocks() const { return static_cast<std::int64_t>(users_.size()); }
  std::int64_t block_size() const { return block_size_; }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t users(std::int64_t block) const;  // how many sequences use it

  // Makes room for one more token of sequence b, in a new block if its last one is full. A
  // block that others use too is never written to: the sequence gets a copy of its own (copy on
  // write). Throws std::invalid_argument if its row of the table is full, OutOfBlocks if it
  // needs a block and none is free.
  NewSlot append(std::int64_t b);

  // Sequence `to` gives back its blocks and gets all tokens of `from`: the same blocks, without
  // copying any. Throws std::invalid_argument if the two are the same.
  void fork(std::int64_t from, std::int64_t to);

  // Sequence b is empty again, and gives its blocks back.
  void release(std::int64_t b);

 private:
  std::int64_t& id(std::int64_t b, std::int64_t entry);
  std::int64_t entries_in_use(std::int64_t b) const;
  void require_sequence(std::int64_t b) const;
  std::int64_t take();

  std::int64_t block_size_;
  BlockTable table_;
  std::vector<std::int64_t> users_;  // [blocks]
  std::vector<std::int64_t> free_;   // the last one is taken next
};

}  // namespace flash_steps

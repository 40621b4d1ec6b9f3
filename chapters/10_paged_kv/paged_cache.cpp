#include "chapters/10_paged_kv/paged_cache.hpp"

#include <string>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

PagedCache::PagedCache(std::int64_t B, std::int64_t max_blocks, std::int64_t blocks,
                       std::int64_t block_size)
    : block_size_(block_size), table_{B, max_blocks, {}, {}} {
  require(B >= 0 && max_blocks >= 0 && blocks >= 0 && block_size >= 1,
          "a cache needs sizes that are not negative, and block_size >= 1");
  table_.ids.assign(at(B * max_blocks), -1);
  table_.seq_lens.assign(at(B), 0);
  users_.assign(at(blocks), 0);
  for (std::int64_t block = blocks; block-- > 0;) free_.push_back(block);  // 0 is taken first
}

std::int64_t PagedCache::users(std::int64_t block) const { return users_.at(at(block)); }

NewSlot PagedCache::append(std::int64_t b) {
  require_sequence(b);
  const std::int64_t length = table_.seq_len(b);
  const std::int64_t entry = length / block_size_, slot = length % block_size_;
  if (entry == table_.max_blocks) {
    require(false, "sequence " + std::to_string(b) + " cannot grow beyond its " +
                       std::to_string(length) +
                       " tokens: its row of the block table has room "
                       "for " +
                       std::to_string(table_.max_blocks) + " blocks of " +
                       std::to_string(block_size_));
  }
  // [begin 10.append]
  std::int64_t copy_from = -1;
  if (slot == 0) {  // the last block is full, or there is none
    id(b, entry) = take();
  } else if (users_[at(id(b, entry))] > 1) {  // others read this block: copy on write
    const std::int64_t own = take();
    copy_from = id(b, entry);
    --users_[at(copy_from)];
    id(b, entry) = own;
  }
  ++table_.seq_lens[at(b)];
  return {id(b, entry), slot, copy_from};
  // [end]
}

void PagedCache::fork(std::int64_t from, std::int64_t to) {
  require_sequence(from);
  require_sequence(to);
  require(from != to, "a sequence cannot be forked onto itself");
  release(to);
  // [begin 10.fork]
  for (std::int64_t entry = 0; entry < entries_in_use(from); ++entry) {
    id(to, entry) = id(from, entry);
    ++users_[at(id(from, entry))];
  }
  table_.seq_lens[at(to)] = table_.seq_len(from);
  // [end]
}

void PagedCache::release(std::int64_t b) {
  require_sequence(b);
  // [begin 10.release]
  for (std::int64_t entry = entries_in_use(b); entry-- > 0;) {
    const std::int64_t block = id(b, entry);
    if (--users_[at(block)] == 0) free_.push_back(block);
    id(b, entry) = -1;
  }
  table_.seq_lens[at(b)] = 0;
  // [end]
}

std::int64_t& PagedCache::id(std::int64_t b, std::int64_t entry) {
  return table_.ids[at(b * table_.max_blocks + entry)];
}

std::int64_t PagedCache::entries_in_use(std::int64_t b) const {
  return ceil_div(table_.seq_len(b), block_size_);
}

void PagedCache::require_sequence(std::int64_t b) const {
  if (b >= 0 && b < table_.B) return;
  require(false, "there is no sequence " + std::to_string(b) + " in a cache of " +
                     std::to_string(table_.B));
}

// A free block, with one user.
std::int64_t PagedCache::take() {
  if (free_.empty()) {
    throw OutOfBlocks("all " + std::to_string(blocks()) + " blocks of the pool are in use");
  }
  const std::int64_t block = free_.back();
  free_.pop_back();
  users_[at(block)] = 1;
  return block;
}

}  // namespace flash_steps

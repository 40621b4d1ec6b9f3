// What attention to a paged cache moves, as a formula. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <span>

#include "chapters/09_flash_decoding/decoding_traffic.hpp"

namespace flash_steps {

struct PagedTraffic {
  DecodingTraffic numbers;     // those of 4 bytes, as in chapter 09
  std::int64_t table_entries;  // read, 4 bytes each
  std::int64_t lengths;        // read, 8 bytes each: one for each block of threads

  constexpr std::int64_t read_bytes() const {
    return 4 * (numbers.reads() + table_entries) + 8 * lengths;
  }
  constexpr std::int64_t written_bytes() const { return 4 * numbers.writes(); }
};

// How many entries of a table the tiles of a sequence look at, one tile after another: a block
// that two tiles share is looked up twice.
constexpr std::int64_t count_entries(std::int64_t Nk, std::int64_t Bc,
                                     std::int64_t block_size) {
  std::int64_t entries = 0;
  for (std::int64_t k_start = 0; k_start < Nk; k_start += Bc) {
    const std::int64_t k_end = std::min(k_start + Bc, Nk);
    entries += ceil_div(k_end, block_size) - k_start / block_size;
  }
  return entries;
}

// What the kernels move without a mask: for each sequence what chapter 09 moves for a
// contiguous cache of its length, and what the table costs.
constexpr PagedTraffic predict_paged(const DecodingSizes& sizes,
                                     std::span<const std::int64_t> seq_lens,
                                     std::int64_t block_size, Tiling tile, std::int64_t splits,
                                     Merge merge) {
  PagedTraffic traffic{};
  // [begin 10.predict]
  for (const std::int64_t Nk : seq_lens) {
    const DecodingSizes sequence{1, sizes.H, sizes.Hkv, sizes.Nq, Nk, sizes.d};
    const DecodingTraffic numbers = predict_decoding(sequence, tile, splits, merge);
    traffic.numbers.keys_values += numbers.keys_values;
    traffic.numbers.queries += numbers.queries;
    traffic.numbers.outputs += numbers.outputs;
    traffic.numbers.parts_written += numbers.parts_written;
    traffic.numbers.parts_read += numbers.parts_read;

    const std::int64_t walks = count_block_rows(sequence, tile.Br);  // over all keys
    traffic.table_entries += walks * count_entries(Nk, tile.Bc, block_size);
    traffic.lengths += walks * splits;
  }
  // [end]
  return traffic;
}

}  // namespace flash_steps

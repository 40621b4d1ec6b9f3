// Wrong versions of chapter 10, which its executable shows and its tests pin down: the listing
// that the project started from, one head, one channel, with its faults one at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace flash_steps::wrong {

// With all of them false, walk_blocks is right.
struct Faults {
  bool m_never_written = false;          // E17
  bool invalid_id_skipped = false;       // E18: `if (id < 0) continue`
  bool invalid_id_is_0 = false;          // E18: an id below 0 is taken as block 0
  bool queries_up_to_seq_len = false;    // E41: seq_len bounds Q as well
  bool query_i_is_token_i = false;       // E41: the causal mask without seq_len - Nq
  bool stale_columns = false;            // E42: l is summed over all slots of the last block
  bool one_m_is_minus_infinity = false;  // E43: float m[Br] = {-inf}; the others are 0
  bool next_block_follows = false;       // pypto 470: blocks 1, 2, ... lie behind block 0
};

// One head of one channel: its pool, and a sequence.
template <class T>
struct SmallCache {
  int block_size;
  std::vector<T> K, V;  // (blocks * block_size)
  std::vector<int> ids;
  int seq_len;

  T key(int slot) const { return K.at(static_cast<std::size_t>(slot)); }
  T value(int slot) const { return V.at(static_cast<std::size_t>(slot)); }
};

// The running state of one query, and its walk over one block: the first `cols` slots from
// `first` on are seen, and l takes in the first `summed`.
template <class T>
struct SmallState {
  T m = -std::numeric_limits<T>::infinity(), l = 0, O = 0;

  void fold(T q, const SmallCache<T>& in, int first, int cols, int summed,
            const Faults& faults) {
    T m_new = m;
    for (int c = 0; c < cols; ++c) m_new = std::max(m_new, q * in.key(first + c));
    const T alpha = std::exp(m - m_new);
    l *= alpha;
    O *= alpha;
    for (int c = 0; c < summed; ++c) l += std::exp(q * in.key(first + c) - m_new);
    for (int c = 0; c < cols; ++c) {
      O += std::exp(q * in.key(first + c) - m_new) * in.value(first + c);
    }
    if (!faults.m_never_written) m = m_new;
  }
};

// Walks the blocks of a sequence, scale 1, for the queries Q (Nq), causal, and returns O (Nq).
// Where nothing is left to read, std::out_of_range.
template <class T>
std::vector<T> walk_blocks(const std::vector<T>& Q, const SmallCache<T>& in,
                           const Faults& faults) {
  const int Nq = static_cast<int>(Q.size());
  const int rows = faults.queries_up_to_seq_len ? in.seq_len : Nq;
  const int offset = faults.query_i_is_token_i ? 0 : in.seq_len - Nq;
  std::vector<T> O;
  for (int r = 0; r < rows; ++r) {
    SmallState<T> state;
    if (faults.one_m_is_minus_infinity && r > 0) state.m = 0;
    for (int entry = 0; entry * in.block_size < in.seq_len; ++entry) {
      int id = in.ids.at(static_cast<std::size_t>(entry));
      if (faults.next_block_follows) id = in.ids.at(0) + entry;
      if (id < 0 && faults.invalid_id_skipped) continue;
      if (id < 0 && faults.invalid_id_is_0) id = 0;
      const int last = std::min(in.seq_len, r + offset + 1);  // keys seen
      const int cols = std::min(in.block_size, last - entry * in.block_size);
      if (cols <= 0) continue;
      state.fold(Q.at(static_cast<std::size_t>(r)), in, id * in.block_size, cols,
                 faults.stale_columns ? in.block_size : cols, faults);
    }
    O.push_back(state.O / state.l);
  }
  return O;
}

// The entry for position `token` of a sequence, without a look at the width of the table
// [B, max_blocks]: beyond it lies the next sequence's row.
inline std::int64_t entry_unchecked(const std::vector<std::int64_t>& ids,
                                    std::int64_t max_blocks, std::int64_t block_size,
                                    std::int64_t b, std::int64_t token) {
  return ids.at(static_cast<std::size_t>(b * max_blocks + token / block_size));
}

}  // namespace flash_steps::wrong

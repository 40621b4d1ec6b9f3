// The parts that splits leave, and how they become one result, on the CPU.
//
//   o_s, LSE_s   (d), 1   of split s: the attention of a row to the keys of that split alone
//   LSE = ln sum_s exp(LSE_s)
//   O   = sum_s exp(LSE_s - LSE) o_s    (d)
#pragma once

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// The parts of all rows, row = (b * H + h) * Nq + n. A part with LSE = -inf is empty, and its o
// is never read: a new SplitParts holds none that is meant to be.
template <class T>
struct SplitParts {
  SplitParts(Index splits, Index rows, Index d) : O(splits * rows, d), LSE(splits, rows) {}

  Matrix<T> O;    // (splits * rows, d) that of split s and row r in row s * rows + r
  Matrix<T> LSE;  // (splits, rows)
};

// Merges the parts of the rows row .. row + rows - 1 into O [B, H, Nq, d] and LSE (B * H, Nq),
// in the order that `merge` says, last_block being sequential. A tree leaves its intermediate
// results in the parts. A row whose parts are all empty gets O = 0, LSE = -inf. NaN in a part's
// LSE, whose o is then NaN too, makes O and LSE of the row NaN, NaN in one channel of o that
// channel. One part alone, among empty ones, comes out bit by bit.
template <class T>
void merge_rows(SplitParts<T>& parts, Index row, Index rows, HeadsView<T> O, MatrixOut<T> LSE,
                Merge merge);

// The same for all rows, in parallel.
template <class T>
void merge_splits_cpu(SplitParts<T>& parts, HeadsView<T> O, MatrixOut<T> LSE, Merge merge);

}  // namespace flash_steps

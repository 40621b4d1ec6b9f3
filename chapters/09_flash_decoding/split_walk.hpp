// One block's work on the CPU: the rows that share a KV head walk over the keys of one split.
// Chapter 10 calls it with a loader of its own.
#pragma once

#include <algorithm>
#include <vector>

#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/09_flash_decoding/merge_splits.hpp"
#include "chapters/09_flash_decoding/splits.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// The rows of a block as one matrix (rows, d). Q [B, H, Nq, d].
template <class T>
Matrix<T> gather_rows(const HeadsView<const T>& Q, const DecodingSizes& sizes,
                      const BlockRows& at) {
  Matrix<T> Qi(at.rows, sizes.d);
  // [begin 09.gather-rows]
  for (Index r = 0; r < at.rows; ++r) {
    const GroupRow row = group_row(at.first_row + r, sizes.Nq);
    Qi.row(r) = Q.head(at.b, at.kv * sizes.group() + row.head).row(row.query);
  }
  // [end]
  return Qi;
}

// Folds the keys of one split into the state of the block's rows Qi (rows, d), row r of which
// is query (first_row + r) % Nq and sees the keys j <= query + offset. load(k_start, cols, Kj,
// Vj) fetches the keys k_start .. k_start + cols - 1 and their values, (cols, d) each, wherever
// they lie. Returns the state with O normalised; a row that sees no key of the split has m =
// -inf, l = 0, O = 0.
template <class T, class LoadTile>
TileState<T> walk_split(MatrixIn<T> Qi, const BlockRows& at, Index Nq, const KeyRange& keys,
                        Index Bc, Index offset, T scale, const LoadTile& load) {
  const Index rows = Qi.rows();
  TileState<T> state(rows, Qi.cols());  // [5]
  std::vector<Index> visible(static_cast<std::size_t>(rows));
  Matrix<T> Kj, Vj;

  // [begin 09.walk]
  for (Index k_start = keys.begin; k_start < keys.end; k_start += Bc) {  // [6]
    const Index cols = std::min(Bc, keys.end - k_start);  // the last tile may be short
    load(k_start, cols, Kj, Vj);                          // [7]
    for (Index r = 0; r < rows; ++r) {
      const Index query = group_row(at.first_row + r, Nq).query;
      visible[static_cast<std::size_t>(r)] = visible_keys(query, k_start, cols, offset);
    }
    fold_tile<T>(state, Qi, Kj, Vj, scale, visible);  // [8]-[10]
  }
  normalise(state);  // [12]
  // [end]
  return state;
}

// Stores the state of the block's rows as their part of split s.
template <class T>
void store_part(SplitParts<T>& parts, Index s, const BlockRows& at, const TileState<T>& state) {
  const Index rows = parts.LSE.cols();  // all
  // [begin 09.store-part]
  parts.O.middleRows(s * rows + at.row, at.rows) = state.O;  // [14]
  parts.LSE.row(s).segment(at.row, at.rows) =
      state.m.array() + state.l.array().log();  // [13] [15]
  // [end]
}

// The block's rows have no part of split s, which is empty: LSE = -inf, and o stays as it is.
template <class T>
void store_empty_part(SplitParts<T>& parts, Index s, const BlockRows& at) {
  parts.LSE.row(s).segment(at.row, at.rows).setConstant(-kInf<T>);
}

}  // namespace flash_steps

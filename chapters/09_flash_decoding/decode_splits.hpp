// All blocks of a decoding on the CPU: every split of every block's rows, then the merge.
// Chapter 10 calls it with a split of its own.
#pragma once

#include <atomic>
#include <vector>

#include "chapters/09_flash_decoding/merge_splits.hpp"
#include "chapters/09_flash_decoding/splits.hpp"
#include "common/tensor/parallel_for.hpp"

namespace flash_steps {

// decode_split(s, at, parts) stores the part of split s for the rows `at`; called once for each
// split and each block of rows, in parallel. The merged parts go to O [B, H, Nq, d] and LSE (B
// * H, Nq). Of the options it reads how to merge.
template <class T, class DecodeSplit>
void decode_splits(const DecodingSizes& sizes, Tiling tile, Index splits,
                   const DecodingOptions& options, HeadsView<T> O, MatrixOut<T> LSE,
                   const DecodeSplit& decode_split) {
  if (sizes.rows() == 0) return;
  SplitParts<T> parts(splits, sizes.rows(), sizes.d);
  const Index blocks = count_block_rows(sizes, tile.Br);
  std::vector<std::atomic<Index>> arrived(static_cast<std::size_t>(blocks));
  parallel_for(blocks * splits, true, [&](Index block) {
    const Index s = block % splits, which = block / splits;
    const BlockRows at = block_rows(sizes, tile.Br, which);
    decode_split(s, at, parts);

    if (options.merge != Merge::last_block) return;
    // [begin 09.last-block]
    const Index before = arrived[static_cast<std::size_t>(which)]++;
    if (before == splits - 1) merge_rows<T>(parts, at.row, at.rows, O, LSE, options.merge);
    // [end]
  });
  if (options.merge != Merge::last_block) merge_splits_cpu<T>(parts, O, LSE, options.merge);
}

}  // namespace flash_steps

// The mask on the CPU: one row of a tile, and the choice of where it comes from.
#pragma once

#include <cstdint>

#include "chapters/12_dropout/dropout_mask.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// row[c] = factor where the weight of row r of the tile at `tile` for its key c is kept, else
// 0. mask: see dropout_mask.hpp.
template <class T, class Mask>
void keep_row(VectorOut<T> row, const Mask& mask, const TileOrigin& tile, Index r, T factor) {
  const Index cols = row.size();
  // [begin 12.keep-row]
  for (Index quad = tile.k_start / 4; 4 * quad < tile.k_start + cols; ++quad) {
    const unsigned kept = mask.keep4(tile.b, tile.h, tile.q_start + r, quad);
    for (int i = 0; i < 4; ++i) {
      // a tile need not begin or end at a multiple of 4
      const Index c = 4 * quad + i - tile.k_start;
      if (c >= 0 && c < cols) row[c] = kept >> i & 1 ? factor : T(0);
    }
  }
  // [end]
}

// Calls use with the stored mask if there is one, else with the computed one of H query heads.
template <class Use>
void with_mask(const HeadsView<const std::uint8_t>* stored, const Dropout& dropout, Index H,
               const Use& use) {
  if (stored) {
    use(StoredMask<const std::uint8_t*>{stored->data(), stored->layout()});
  } else {
    use(PhiloxMask(dropout, H));
  }
}

}  // namespace flash_steps

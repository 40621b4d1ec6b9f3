#include "chapters/08_loop_order/predict_masked.hpp"

#include <algorithm>

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {

Counts predict_loop_order(LoopOrder order, std::int64_t Nq, std::int64_t Nk, std::int64_t d,
                          Tiling tile, bool causal) {
  const Counts unmasked = order == LoopOrder::q_outer ? predict_q_outer(Nq, Nk, d, tile)
                                                      : predict_kv_outer(Nq, Nk, d, tile);
  if (!causal || Nq == 0) return unmasked;

  // [begin 08.visited]
  // a Q tile sees the first so many K/V tiles: up to the last key that its last row sees
  std::int64_t rows_visited = 0,
               keys_visited = 0;  // over all pairs of tiles that are not hidden
  for (std::int64_t q_start = 0; q_start < Nq; q_start += tile.Br) {
    const std::int64_t rows = std::min(tile.Br, Nq - q_start);
    const std::int64_t k_stop =
        visible_keys(q_start + rows - 1, 0, Nk, mask_offset(Nq, Nk, true));
    const std::int64_t tiles = ceil_div(k_stop, tile.Bc);
    rows_visited += tiles * rows;
    keys_visited += tiles > 0 ? std::min(Nk, tiles * tile.Bc) : 0;
  }
  Counts counts;
  if (order == LoopOrder::q_outer) {
    counts.reads =
        Nq * d + 2 * keys_visited * d;  // Q once; K and V for each Q tile that sees them
    counts.writes = Nq * d;
    counts.statistics_writes = Nq;
  } else {
    counts.reads =
        2 * Nk * d + 2 * rows_visited * d;  // K and V once: the last query sees them all
    counts.writes = rows_visited * d;
    counts.statistics_reads = 2 * rows_visited;
    counts.statistics_writes = 2 * rows_visited;
  }
  // [end]
  return counts;
}

}  // namespace flash_steps

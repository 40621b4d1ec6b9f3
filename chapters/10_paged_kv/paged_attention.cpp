#include "chapters/10_paged_kv/paged_attention.hpp"

#include <algorithm>

#include "chapters/09_flash_decoding/decode_splits.hpp"
#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/split_walk.hpp"
#include "chapters/10_paged_kv/paged_shapes.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// What does not change from one block to the next.
template <class T>
struct Paged {
  HeadsView<const T> Q, pool;
  const BlockTable& table;
  DecodingSizes sizes;
  Tiling tile;
  Index splits;
  bool causal;
  T scale;
};

// Kj, Vj (cols, d) = the keys k_start .. k_start + cols - 1 of sequence b and their values,
// copied together from the blocks that hold them.
template <class T>
void gather_tile(const Paged<T>& in, Index b, Index kv, Index k_start, Index cols,
                 Matrix<T>& Kj, Matrix<T>& Vj) {
  const Index block_size = in.pool.N(), blocks = in.pool.B() / 2;
  Kj.resize(cols, in.sizes.d);
  Vj.resize(cols, in.sizes.d);
  // [begin 10.gather]
  Index rows = 0;
  for (Index c = 0; c < cols; c += rows) {
    const Index j = k_start + c, slot = j % block_size;
    const Index id = in.table.id(b, j / block_size);
    rows = std::min(block_size - slot, cols - c);  // as many as are wanted of this block
    Kj.middleRows(c, rows) = in.pool.head(id, kv).middleRows(slot, rows);
    Vj.middleRows(c, rows) = in.pool.head(blocks + id, kv).middleRows(slot, rows);
  }
  // [end]
}

// One split of one sequence, for rows that share a KV head: what a block does on the device.
template <class T>
void decode_split(const Paged<T>& in, Index s, const BlockRows& at, SplitParts<T>& parts) {
  // [begin 10.split]
  const Index Nq = in.sizes.Nq, Nk = in.table.seq_len(at.b);
  const Index offset = mask_offset(Nq, Nk, in.causal);  // each sequence has its own
  const KeyRange keys =
      seen_keys(split_keys(Nk, in.tile.Bc, in.splits, s), at, Nq, in.tile.Bc, offset);
  if (keys.empty()) return store_empty_part<T>(parts, s, at);
  const Matrix<T> Qi = gather_rows<T>(in.Q, in.sizes, at);  // [4]

  const auto load = [&](Index k_start, Index cols, Matrix<T>& Kj, Matrix<T>& Vj) {
    gather_tile(in, at.b, at.kv, k_start, cols, Kj, Vj);
  };
  const TileState<T> state =
      walk_split<T>(Qi, at, Nq, keys, in.tile.Bc, offset, in.scale, load);
  store_part<T>(parts, s, at, state);
  // [end]
}

}  // namespace

template <class T>
void paged_attention_cpu(HeadsView<const T> Q, HeadsView<const T> pool, const BlockTable& table,
                         HeadsView<T> O, MatrixOut<T> LSE, const DecodingOptions& options) {
  require_block_table(table, pool.B() / 2, pool.N());
  const DecodingSizes sizes = require_paged_shapes(Q.layout(), pool.layout(), O.layout(),
                                                   shape_of(LSE), table.B, table.longest());
  const Tiling tile = decoding_tile(sizes, options.tile);
  const Index splits = flash_decoding_splits_cpu(sizes, options);
  const Paged<T> in{Q,    pool,   table,          sizes,
                    tile, splits, options.causal, resolve_scale<T>(options.scale, sizes.d)};
  decode_splits<T>(sizes, tile, splits, options, O, LSE,
                   [&](Index s, const BlockRows& at, SplitParts<T>& parts) {
                     decode_split(in, s, at, parts);
                   });
}

template void paged_attention_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                         const BlockTable&, HeadsView<float>, MatrixOut<float>,
                                         const DecodingOptions&);
template void paged_attention_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                          const BlockTable&, HeadsView<double>,
                                          MatrixOut<double>, const DecodingOptions&);

}  // namespace flash_steps

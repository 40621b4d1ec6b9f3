#include "chapters/09_flash_decoding/flash_decoding.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "chapters/09_flash_decoding/decode_splits.hpp"
#include "chapters/09_flash_decoding/split_walk.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

std::int64_t host_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// What does not change from one block to the next.
template <class T>
struct Decoding {
  HeadsView<const T> Q, K, V;
  DecodingSizes sizes;
  Tiling tile;
  Index splits, offset;
  T scale;
};

// One split, for rows that share a KV head: what a block does on the device.
template <class T>
void decode_split(const Decoding<T>& in, Index s, const BlockRows& at, SplitParts<T>& parts) {
  // [begin 09.split]
  const KeyRange keys = split_keys(in.sizes.Nk, in.tile.Bc, in.splits, s);
  if (keys.empty()) return store_empty_part<T>(parts, s, at);
  const Matrix<T> Qi = gather_rows<T>(in.Q, in.sizes, at);  // [4]

  // copies, for the last bits of sums over other people's memory depend on its alignment
  const auto load = [&](Index k_start, Index cols, Matrix<T>& Kj, Matrix<T>& Vj) {
    Kj = in.K.head(at.b, at.kv).middleRows(k_start, cols);
    Vj = in.V.head(at.b, at.kv).middleRows(k_start, cols);
  };
  const TileState<T> state =
      walk_split<T>(Qi, at, in.sizes.Nq, keys, in.tile.Bc, in.offset, in.scale, load);
  store_part<T>(parts, s, at, state);
  // [end]
}

}  // namespace

std::int64_t flash_decoding_splits_cpu(const DecodingSizes& sizes,
                                       const DecodingOptions& options) {
  return decoding_splits(sizes, options, host_threads());
}

template <class T>
void flash_decoding_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                        HeadsView<T> O, MatrixOut<T> LSE, const DecodingOptions& options) {
  const DecodingSizes sizes =
      require_decoding_shapes(Q.layout(), K.layout(), V.layout(), O.layout(), shape_of(LSE));
  const Tiling tile = decoding_tile(sizes, options.tile);
  const Index splits = flash_decoding_splits_cpu(sizes, options);
  const Decoding<T> in{Q,
                       K,
                       V,
                       sizes,
                       tile,
                       splits,
                       mask_offset(sizes.Nq, sizes.Nk, options.causal),
                       resolve_scale<T>(options.scale, sizes.d)};
  decode_splits<T>(sizes, tile, splits, options, O, LSE,
                   [&](Index s, const BlockRows& at, SplitParts<T>& parts) {
                     decode_split<T>(in, s, at, parts);
                   });
}

template void flash_decoding_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                        HeadsView<const float>, HeadsView<float>,
                                        MatrixOut<float>, const DecodingOptions&);
template void flash_decoding_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                         HeadsView<const double>, HeadsView<double>,
                                         MatrixOut<double>, const DecodingOptions&);

}  // namespace flash_steps

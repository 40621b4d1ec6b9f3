#include "chapters/12_dropout/dropout_forward.hpp"

#include <algorithm>
#include <vector>

#include "chapters/03_tiled_forward/tiled_forward.hpp"
#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/12_dropout/dropout_arguments.hpp"
#include "chapters/12_dropout/keep_row.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

// The weights of the folded tile that the mask does not keep become 0.
template <class T, class Mask>
void drop_weights(TileState<T>& state, std::span<const Index> visible, const Mask& mask,
                  const TileOrigin& tile) {
  Vector<T> kept(state.S.cols());
  // [begin 12.drop-weights]
  for (Index r = 0; r < state.S.rows(); ++r) {
    const Index seen = visible[static_cast<std::size_t>(r)];
    keep_row<T>(kept.head(seen), mask, tile, r, T(1));
    state.S.row(r).head(seen).array() *= kept.head(seen).transpose().array();
  }
  // [end]
}

// The walk of the query tile from q_start on, of head (b, h): chapter 04's, with the mask
// between the weights and the values.
template <class T, class Mask>
TileState<T> dropout_q_tile(MatrixIn<T> Qi, MatrixIn<T> K, MatrixIn<T> V, Index b, Index h,
                            Index q_start, Index Bc, Index offset, T scale, const Mask& mask,
                            T keep_factor) {
  const Index Nk = K.rows(), rows = Qi.rows();
  TileState<T> state(rows, Qi.cols());  // [5]
  std::vector<Index> visible(static_cast<std::size_t>(rows));

  const Index k_stop = visible_keys(q_start + rows - 1, 0, Nk, offset);
  for (Index k_start = 0; k_start < k_stop; k_start += Bc) {  // [6]
    const Index cols = std::min(Bc, Nk - k_start);            // the last tile may be short
    for (Index r = 0; r < rows; ++r) {
      visible[static_cast<std::size_t>(r)] = visible_keys(q_start + r, k_start, cols, offset);
    }
    // [begin 12.fold-tile]
    tile_scores<T>(state, Qi, K.middleRows(k_start, cols), scale);    // [7] [8]
    tile_weights<T>(state, visible);                                  // [9] l sums all weights
    drop_weights<T>(state, visible, mask, {b, h, q_start, k_start});  // O gets those kept
    add_values<T>(state, V.middleRows(k_start, cols), visible);       // [10]
    // [end]
  }
  // [begin 12.finish]
  normalise(state);        // [12] by the sum of all weights
  state.O *= keep_factor;  // once, and here: 1/(1-p)
  // [end]
  return state;
}

template <class T, class Mask>
void forward_heads(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                   HeadsView<T> O, MatrixOut<T> LSE, Tiling tile, bool causal, T scale,
                   const Mask& mask, T keep_factor) {
  const Index B = Q.B(), H = Q.H(), Nq = Q.N(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, K.N(), causal);

  parallel_for(Tr * B * H, true, [&](Index index) {  // [3]
    const TilePlace at = tile_place(index, Tr, B, H);
    const Index kv = kv_head(at.h, H, K.H());
    const Index q_start = at.i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const TileState<T> state = dropout_q_tile<T>(
        Q.head(at.b, at.h).middleRows(q_start, rows), K.head(at.b, kv), V.head(at.b, kv), at.b,
        at.h, q_start, tile.Bc, offset, scale, mask, keep_factor);  // [4]
    O.head(at.b, at.h).middleRows(q_start, rows) = state.O;         // [14]
    LSE.row(at.b * H + at.h).segment(q_start, rows) =
        (state.m.array() + state.l.array().log()).transpose();  // [13] [15]
  });
}

}  // namespace

template <class T>
void dropout_forward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                         HeadsView<T> O, MatrixOut<T> LSE, const Dropout& dropout, Tiling tile,
                         bool causal, std::optional<double> scale,
                         const HeadsView<const std::uint8_t>* mask) {
  require_dropout_arguments(Q, K, V, batch_shape(O), shape_of(LSE), dropout, mask);
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.d());
  with_mask(mask, dropout, Q.H(), [&](const auto& source) {
    forward_heads<T>(Q, K, V, O, LSE, tile, causal, s, source, dropout.keep_factor<T>());
  });
}

void dropout_mask_cpu(HeadsView<std::uint8_t> kept, const Dropout& dropout) {
  const Index H = kept.H(), Nq = kept.N();
  require_dropout(dropout, kept.B(), H, Nq, kept.d());
  const PhiloxMask mask(dropout, H);
  parallel_for(kept.B() * H, true, [&](Index head) {
    const Index b = head / H, h = head % H;
    for (Index r = 0; r < Nq; ++r) {
      keep_row<std::uint8_t>(kept.head(b, h).row(r).transpose(), mask, {b, h, 0, 0}, r, 1);
    }
  });
}

template void dropout_forward_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                         HeadsView<const float>, HeadsView<float>,
                                         MatrixOut<float>, const Dropout&, Tiling, bool,
                                         std::optional<double>,
                                         const HeadsView<const std::uint8_t>*);
template void dropout_forward_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                          HeadsView<const double>, HeadsView<double>,
                                          MatrixOut<double>, const Dropout&, Tiling, bool,
                                          std::optional<double>,
                                          const HeadsView<const std::uint8_t>*);

}  // namespace flash_steps

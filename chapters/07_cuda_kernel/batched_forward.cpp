#include "chapters/07_cuda_kernel/batched_forward.hpp"

#include <algorithm>

#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/07_cuda_kernel/batch_grid.hpp"
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {

template <class T>
void batched_forward_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                         HeadsView<T> O, MatrixOut<T> LSE, Tiling tile, bool causal,
                         std::optional<double> scale) {
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), batch_shape(O),
                       shape_of(LSE));
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.d());
  const Index B = Q.B(), H = Q.H(), Nq = Q.N(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, K.N(), causal);

  // [begin 07.batched-forward]
  // [3] neither query tiles nor heads nor batches depend on each other: one loop over all three
  parallel_for(Tr * B * H, true, [&](Index index) {
    const TilePlace at = tile_place(index, Tr, B, H);
    const Index kv = kv_head(at.h, H, K.H());
    const Index q_start = at.i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const TileState<T> state =
        causal_q_tile<T>(Q.head(at.b, at.h).middleRows(q_start, rows), K.head(at.b, kv),
                         V.head(at.b, kv), q_start, tile.Bc, offset, s);  // [4]-[12]
    O.head(at.b, at.h).middleRows(q_start, rows) = state.O;               // [14]
    LSE.row(at.b * H + at.h).segment(q_start, rows) =
        (state.m.array() + state.l.array().log()).transpose();  // [13] [15]
  });
  // [end]
}

template void batched_forward_cpu<float>(HeadsView<const float>, HeadsView<const float>,
                                         HeadsView<const float>, HeadsView<float>,
                                         MatrixOut<float>, Tiling, bool, std::optional<double>);
template void batched_forward_cpu<double>(HeadsView<const double>, HeadsView<const double>,
                                          HeadsView<const double>, HeadsView<double>,
                                          MatrixOut<double>, Tiling, bool,
                                          std::optional<double>);

}  // namespace flash_steps

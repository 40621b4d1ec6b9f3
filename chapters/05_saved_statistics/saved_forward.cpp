#include "chapters/05_saved_statistics/saved_forward.hpp"

#include <algorithm>

#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/05_saved_statistics/statistics_shapes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

template <class T>
void saved_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                       VectorOut<T> m, VectorOut<T> l, VectorOut<T> LSE, Tiling tile,
                       bool causal, std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_statistics_sizes(m.size(), l.size(), LSE.size(), Q.rows());
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, K.rows(), causal);

  // [3] query tiles do not depend on each other
  parallel_for(Tr, true, [&](Index i) {
    const Index q_start = i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const TileState<T> state = causal_q_tile<T>(Q.middleRows(q_start, rows), K, V, q_start,
                                                tile.Bc, offset, s);  // [4]
    O.middleRows(q_start, rows) = state.O;                            // [14]

    // [begin 05.save-statistics]
    // [13] [15] two numbers a row, or one. Without keys m = -inf and ln 0 = -inf: no branch
    m.segment(q_start, rows) = state.m;
    l.segment(q_start, rows) = state.l;
    LSE.segment(q_start, rows) = state.m.array() + state.l.array().log();
    // [end]
  });
}

template void saved_forward_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                       MatrixOut<float>, VectorOut<float>, VectorOut<float>,
                                       VectorOut<float>, Tiling, bool, std::optional<double>);
template void saved_forward_cpu<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                        MatrixOut<double>, VectorOut<double>, VectorOut<double>,
                                        VectorOut<double>, Tiling, bool, std::optional<double>);

}  // namespace flash_steps

#include "chapters/04_causal_skipping/causal_forward.hpp"

#include <algorithm>
#include <vector>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

template <class T>
TileState<T> causal_q_tile(MatrixIn<T> Qi, MatrixIn<T> K, MatrixIn<T> V, Index q_start,
                           Index Bc, Index offset, T scale, Visit visit,
                           TileObserver<T>* observer) {
  const Index Nk = K.rows(), rows = Qi.rows();
  TileState<T> state(rows, Qi.cols());  // [5]
  state.row0 = q_start;
  std::vector<Index> visible(static_cast<std::size_t>(rows));

  // [begin 04.walk]
  // no row sees further than the last one: from k_stop on all tiles are hidden, and skipped
  const Index k_stop =
      visit == Visit::all_tiles ? Nk : visible_keys(q_start + rows - 1, 0, Nk, offset);
  for (Index k_start = 0; k_start < k_stop; k_start += Bc) {  // [6]
    const Index cols = std::min(Bc, Nk - k_start);            // the last tile may be short
    for (Index r = 0; r < rows; ++r) {
      visible[static_cast<std::size_t>(r)] = visible_keys(q_start + r, k_start, cols, offset);
    }
    state.col0 = k_start;
    fold_tile<T>(state, Qi, K.middleRows(k_start, cols), V.middleRows(k_start, cols), scale,
                 visible, observer);  // [7]-[10]
  }
  normalise(state);  // [12]
  // [end]
  return state;
}

template <class T>
void causal_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                        Tiling tile, bool causal, std::optional<double> scale, Visit visit,
                        TileObserver<T>* observer) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, K.rows(), causal);

  // [3] query tiles do not depend on each other
  parallel_for(Tr, !observer, [&](Index i) {
    const Index q_start = i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const TileState<T> state = causal_q_tile<T>(Q.middleRows(q_start, rows), K, V, q_start,
                                                tile.Bc, offset, s, visit, observer);  // [4]
    O.middleRows(q_start, rows) = state.O;                                             // [14]
  });
}

template TileState<float> causal_q_tile<float>(MatrixIn<float>, MatrixIn<float>,
                                               MatrixIn<float>, Index, Index, Index, float,
                                               Visit, TileObserver<float>*);
template void causal_forward_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                        MatrixOut<float>, Tiling, bool, std::optional<double>,
                                        Visit, TileObserver<float>*);
template TileState<double> causal_q_tile<double>(MatrixIn<double>, MatrixIn<double>,
                                                 MatrixIn<double>, Index, Index, Index, double,
                                                 Visit, TileObserver<double>*);
template void causal_forward_cpu<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                         MatrixOut<double>, Tiling, bool, std::optional<double>,
                                         Visit, TileObserver<double>*);

}  // namespace flash_steps

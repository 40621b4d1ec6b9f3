#include "chapters/03_tiled_forward/tiled_forward.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "chapters/03_tiled_forward/exp_minus.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

template <class T>
TileState<T>::TileState(Index rows, Index d)
    : m(Vector<T>::Constant(rows, -kInf<T>)),
      l(Vector<T>::Zero(rows)),
      alpha(Vector<T>::Zero(rows)),
      O(Matrix<T>::Zero(rows, d)) {}

template <class T>
void tile_scores(TileState<T>& state, MatrixIn<T> Qi, MatrixIn<T> Kj, T scale) {
  Matrix<T>& S = state.S;
  // [begin 03.scores]
  // [8] scores of this tile
  S.noalias() = Qi * Kj.transpose();  // (rows, cols)
  S *= scale;
  // [end]
}

template <class T>
void tile_weights(TileState<T>& state, std::span<const Index> visible) {
  Matrix<T>& S = state.S;
  const Index rows = S.rows();
  // [begin 03.fold-tile]
  for (Index r = 0; r < rows; ++r) {
    state.alpha[r] = T(1);
    if (visible[r] == 0) continue;
    auto row = S.row(r).head(visible[r]).array();

    // [9] the new maximum. While there is none above -inf, the exponents are relative to 0:
    // (-inf) - (-inf) would be NaN
    const T m_new = std::max(state.m[r], row.maxCoeff());
    const T shift = m_new == -kInf<T> ? T(0) : m_new;

    // [9] this tile's weights are relative to the new maximum; alpha carries the old l over to
    // it
    exp_minus(row, shift);
    state.alpha[r] = std::exp(state.m[r] - shift);
    state.l[r] = state.alpha[r] * state.l[r] + row.sum();
    state.m[r] = m_new;
  }
  // [10] alpha carries the old O over, too (the paper prints its inverse)
  state.O.array().colwise() *= state.alpha.array();
  // [end]
}

template <class T>
void add_values(TileState<T>& state, MatrixIn<T> Vj, std::span<const Index> visible) {
  const Matrix<T>& S = state.S;
  const Index rows = S.rows(), cols = Vj.rows();
  // [begin 03.add-values]
  // [10] add P V: as one product if every row sees every key, else row by row, so that the
  // value of a hidden key is not even multiplied by 0 (0 * NaN is NaN)
  if (std::all_of(visible.begin(), visible.end(), [&](Index n) { return n == cols; })) {
    state.O.noalias() += S * Vj;
  } else {
    for (Index r = 0; r < rows; ++r) {
      state.O.row(r).noalias() += S.row(r).head(visible[r]) * Vj.topRows(visible[r]);
    }
  }
  // [end]
}

template <class T>
void fold_tile(TileState<T>& state, MatrixIn<T> Qi, MatrixIn<T> Kj, MatrixIn<T> Vj, T scale,
               std::span<const Index> visible, TileObserver<T>* observer) {
  Matrix<T> shown_S;  // S becomes P in place; an observer gets a copy of what it was

  tile_scores<T>(state, Qi, Kj, scale);  // [8]
  if (observer) shown_S = state.S;
  tile_weights<T>(state, visible);    // [9]
  add_values<T>(state, Vj, visible);  // [10]
  if (observer) observer->on_tile({shown_S, state, visible});
}

template <class T>
void normalise(TileState<T>& state) {
  // [begin 03.normalise]
  for (Index r = 0; r < state.l.size(); ++r) {  // [12]
    if (state.l[r] == T(0)) {
      state.O.row(r).setZero();  // no key seen: 0, not 0/0
    } else {
      state.O.row(r) /= state.l[r];
    }
  }
  // [end]
}

template <class T>
TileState<T> forward_q_tile(MatrixIn<T> Qi, MatrixIn<T> K, MatrixIn<T> V, Index q_start,
                            Index Bc, T scale, TileObserver<T>* observer) {
  const Index Nk = K.rows(), rows = Qi.rows();
  TileState<T> state(rows, Qi.cols());  // [5]
  state.row0 = q_start;
  std::vector<Index> visible(static_cast<std::size_t>(rows));

  // [begin 03.walk]
  for (Index k_start = 0; k_start < Nk; k_start += Bc) {  // [6]
    const Index cols = std::min(Bc, Nk - k_start);        // the last tile may be short
    std::fill(visible.begin(), visible.end(), cols);      // no mask: all rows see all of it
    state.col0 = k_start;
    fold_tile<T>(state, Qi, K.middleRows(k_start, cols), V.middleRows(k_start, cols), scale,
                 visible, observer);  // [7]-[10]
  }
  normalise(state);  // [12]
  // [end]
  return state;
}

// [begin 03.tiled-forward]
template <class T>
void tiled_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O, Tiling tile,
                       std::optional<double> scale, TileObserver<T>* observer) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), Tr = ceil_div(Nq, tile.Br);

  // [3] query tiles do not depend on each other
  parallel_for(Tr, !observer, [&](Index i) {
    const Index q_start = i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const TileState<T> state = forward_q_tile<T>(Q.middleRows(q_start, rows), K, V, q_start,
                                                 tile.Bc, s, observer);  // [4]
    O.middleRows(q_start, rows) = state.O;                               // [14]
  });
}
// [end]

template struct TileState<float>;
template void tile_scores<float>(TileState<float>&, MatrixIn<float>, MatrixIn<float>, float);
template void tile_weights<float>(TileState<float>&, std::span<const Index>);
template void add_values<float>(TileState<float>&, MatrixIn<float>, std::span<const Index>);
template void fold_tile<float>(TileState<float>&, MatrixIn<float>, MatrixIn<float>,
                               MatrixIn<float>, float, std::span<const Index>,
                               TileObserver<float>*);
template void normalise<float>(TileState<float>&);
template TileState<float> forward_q_tile<float>(MatrixIn<float>, MatrixIn<float>,
                                                MatrixIn<float>, Index, Index, float,
                                                TileObserver<float>*);
template void tiled_forward_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                       MatrixOut<float>, Tiling, std::optional<double>,
                                       TileObserver<float>*);
template struct TileState<double>;
template void tile_scores<double>(TileState<double>&, MatrixIn<double>, MatrixIn<double>,
                                  double);
template void tile_weights<double>(TileState<double>&, std::span<const Index>);
template void add_values<double>(TileState<double>&, MatrixIn<double>, std::span<const Index>);
template void fold_tile<double>(TileState<double>&, MatrixIn<double>, MatrixIn<double>,
                                MatrixIn<double>, double, std::span<const Index>,
                                TileObserver<double>*);
template void normalise<double>(TileState<double>&);
template TileState<double> forward_q_tile<double>(MatrixIn<double>, MatrixIn<double>,
                                                  MatrixIn<double>, Index, Index, double,
                                                  TileObserver<double>*);
template void tiled_forward_cpu<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                        MatrixOut<double>, Tiling, std::optional<double>,
                                        TileObserver<double>*);

}  // namespace flash_steps

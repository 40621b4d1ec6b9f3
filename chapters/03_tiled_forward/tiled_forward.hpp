// Chapter 03: FlashAttention's forward pass, tile by tile, on the CPU.
//
//   S = scale * Q K^T     (Nq, Nk)  scores; only one (Br, Bc) tile exists at a time
//   P = softmax_row(S)    (Nq, Nk)  likewise
//   O = P V               (Nq, d)   output
//
// [n] marks line n of Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include <optional>
#include <span>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

// What one tile of query rows carries from key tile to key tile.
template <class T>
struct TileState {
  TileState(Index rows, Index d);  // [5] before the first key: m = -inf, l = 0, O = 0

  Vector<T> m;      // (rows)     running maximum of the visible scaled scores
  Vector<T> l;      // (rows)     running sum of exp(score - m)
  Vector<T> alpha;  // (rows)     exp(m_old - m_new) of the last fold
  Matrix<T> O;      // (rows, d)  running sum of exp(score - m) * value, not yet divided by l
  Matrix<T> S;      // (rows, cols) scratch: the scores of the last tile, then its P
  Index row0 = 0, col0 = 0;  // where the tile lies in the whole matrix; only observers read it
};

// What an observer is shown after each fold. Everything but S is the state after the fold.
template <class T>
struct FoldedTile {
  const Matrix<T>& S;              // (rows, cols) scaled scores
  const TileState<T>& state;       // state.S holds P = exp(S - m)
  std::span<const Index> visible;  // (rows)
};

template <class T>
class TileObserver {
 public:
  virtual ~TileObserver() = default;
  virtual void on_tile(const FoldedTile<T>& tile) = 0;
};

// Folds one key tile into the state of one query tile: the update that chapters 03 to 12 share.
//
// Qi (rows, d), Kj and Vj (cols, d). visible[r], from 0 to cols, is how many leading keys of
// this tile row r sees. Keys beyond that count have weight exactly 0 and their K and V may hold
// anything. A row whose scores so far are all hidden or -inf keeps m = -inf, l = 0, O = 0. NaN
// in a visible score makes l and O of the row NaN (m is then unspecified).
template <class T>
void fold_tile(TileState<T>& state, MatrixIn<T> Qi, MatrixIn<T> Kj, MatrixIn<T> Vj, T scale,
               std::span<const Index> visible, TileObserver<T>* observer = nullptr);

// fold_tile's three steps, for walks that do something in between. Arguments and edges are
// fold_tile's.
//
// state.S = scale * Qi Kj^T.
template <class T>
void tile_scores(TileState<T>& state, MatrixIn<T> Qi, MatrixIn<T> Kj, T scale);
// state.S, the scores, become P = exp(S - m) where they are visible; m, l and O move to the new
// maximum, and l takes the sum of P in.
template <class T>
void tile_weights(TileState<T>& state, std::span<const Index> visible);
// O += P Vj, over the visible keys.
template <class T>
void add_values(TileState<T>& state, MatrixIn<T> Vj, std::span<const Index> visible);

// Divides O by l. A row that saw no key has l = 0 and gets O = 0.
template <class T>
void normalise(TileState<T>& state);

// The walk of one query tile over all keys: the body of the outer loop. Qi (rows, d) are the
// rows of Q from q_start on; K, V (Nk, d). Returns the state with O normalised.
template <class T>
TileState<T> forward_q_tile(MatrixIn<T> Qi, MatrixIn<T> K, MatrixIn<T> V, Index q_start,
                            Index Bc, T scale, TileObserver<T>* observer = nullptr);

// O = softmax(scale * Q K^T) V for one head, every query seeing every key.
//
// Q (Nq, d), K and V (Nk, d) -> O (Nq, d), T = float or double, 1 <= d <= 256, Nq and Nk may be
// 0 (no keys: O = 0). scale defaults to 1/sqrt(d). On-chip memory is one TileState a thread,
// whatever Nq and Nk are. Query tiles run in parallel, or in order on one thread with an
// observer. Throws std::invalid_argument for shapes that do not fit, Br or Bc < 1, or a scale
// not finite in T.
template <class T>
void tiled_forward_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                       Tiling tile = {}, std::optional<double> scale = {},
                       TileObserver<T>* observer = nullptr);

}  // namespace flash_steps

#include "chapters/02_io_counting/standard_attention.hpp"

#include <algorithm>
#include <cmath>

#include "chapters/02_io_counting/counted_matrix.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

// Q (Nq, d), K (Nk, d) -> S (Nq, Nk), in HBM all three.
template <class T>
void standard_scores(const CountedMatrix<const T>& Q, const CountedMatrix<const T>& K,
                     const CountedMatrix<T>& S, Index Nq, Index Nk, Index d, Tiling tile,
                     T scale) {
  // [begin 02.standard-scores]
  for (Index q_start = 0; q_start < Nq; q_start += tile.Br) {
    const Index rows = std::min(tile.Br, Nq - q_start);
    const Matrix<T> Qi = Q.load(q_start, 0, rows, d);  // stays while all keys pass
    for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const Index cols = std::min(tile.Bc, Nk - k_start);
      const Matrix<T> Kj = K.load(k_start, 0, cols, d);
      Matrix<T> Sij(rows, cols);
      Sij.noalias() = Qi.lazyProduct(Kj.transpose());  // lazy: on this thread alone
      Sij *= scale;
      S.store(q_start, k_start, Sij);
    }
  }
  // [end]
}

// S (Nq, Nk) becomes P in place.
template <class T>
void standard_softmax(const CountedMatrix<T>& S, Index Nq, Index Nk) {
  // [begin 02.standard-softmax]
  for (Index r = 0; r < Nq; ++r) {
    Matrix<T> row = S.load(r, 0, 1, Nk);  // on chip for all that follows: S is read once
    T m = -kInf<T>;
    for (const T s : row.reshaped()) m = std::max(m, s);
    const T shift = m == -kInf<T> ? T(0) : m;  // (-inf) - (-inf) would be NaN
    for (T& p : row.reshaped()) p = std::exp(p - shift);
    const T l = row.sum();
    if (l != T(0)) row /= l;  // a row whose scores are all -inf has no weights
    S.store(r, 0, row);
  }
  // [end]
}

// P (Nq, Nk), V (Nk, d) -> O (Nq, d).
template <class T>
void standard_values(const CountedMatrix<T>& P, const CountedMatrix<const T>& V,
                     const CountedMatrix<T>& O, Index Nq, Index Nk, Index d, Tiling tile) {
  // [begin 02.standard-values]
  for (Index q_start = 0; q_start < Nq; q_start += tile.Br) {
    const Index rows = std::min(tile.Br, Nq - q_start);
    Matrix<T> Oi = Matrix<T>::Zero(rows, d);  // stays while all values pass
    Vector<T> weight = Vector<T>::Zero(rows);
    for (Index k_start = 0; k_start < Nk; k_start += tile.Bc) {
      const Index cols = std::min(tile.Bc, Nk - k_start);
      const Matrix<T> Pij = P.load(q_start, k_start, rows, cols);
      const Matrix<T> Vj = V.load(k_start, 0, cols, d);
      Oi.noalias() += Pij.lazyProduct(Vj);
      weight += Pij.rowwise().sum();
    }
    for (Index r = 0; r < rows; ++r) {
      if (weight[r] == T(0)) Oi.row(r).setZero();  // no key: 0, whatever V holds
    }
    O.store(q_start, 0, Oi);
  }
  // [end]
}

}  // namespace

template <class T>
Counts standard_attention_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                              Tiling tile, std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();

  Counts counts;
  Matrix<T> scores(Nq, Nk);  // in HBM: what the tiled orders do without
  const CountedMatrix<const T> hbm_Q(Q, counts.reads, counts.writes),
      hbm_K(K, counts.reads, counts.writes), hbm_V(V, counts.reads, counts.writes);
  const CountedMatrix<T> hbm_S(scores, counts.reads, counts.writes),
      hbm_O(O, counts.reads, counts.writes);
  standard_scores(hbm_Q, hbm_K, hbm_S, Nq, Nk, d, tile, s);
  standard_softmax(hbm_S, Nq, Nk);
  standard_values(hbm_S, hbm_V, hbm_O, Nq, Nk, d, tile);
  return counts;
}

template Counts standard_attention_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                              MatrixOut<float>, Tiling, std::optional<double>);
template Counts standard_attention_cpu<double>(MatrixIn<double>, MatrixIn<double>,
                                               MatrixIn<double>, MatrixOut<double>, Tiling,
                                               std::optional<double>);

}  // namespace flash_steps

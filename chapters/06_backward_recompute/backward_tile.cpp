#include "chapters/06_backward_recompute/backward_tile.hpp"

#include <algorithm>

#include "chapters/03_tiled_forward/exp_minus.hpp"
#include "chapters/06_backward_recompute/causal_walks.hpp"

namespace flash_steps {
namespace {

bool all_use_all(std::span<const Index> visible, Index cols) {
  return std::all_of(visible.begin(), visible.end(), [&](Index n) { return n == cols; });
}

// out (cols, d) += factor * W^T X, W (rows, cols), X (rows, d): as one product if every row
// uses every key, else row by row, over the keys that the row uses.
template <class T>
void add_transposed(MatrixOut<T> out, T factor, const Matrix<T>& W, MatrixIn<T> X,
                    std::span<const Index> visible) {
  // [begin 06.add-transposed]
  if (all_use_all(visible, W.cols())) {
    out.noalias() += factor * W.transpose() * X;
  } else {
    for (Index r = 0; r < W.rows(); ++r) {
      const Index seen = visible[static_cast<std::size_t>(r)];
      out.topRows(seen).noalias() += factor * W.row(r).head(seen).transpose() * X.row(r);
    }
  }
  // [end]
}

}  // namespace

template <class T>
std::vector<Index> count_used_keys(VectorIn<T> l, Index q_start, Index k_start, Index cols,
                                   Index offset) {
  std::vector<Index> visible;
  for (Index r = 0; r < l.size(); ++r) {
    visible.push_back(used_keys(l[r], q_start + r, k_start, cols, offset));
  }
  return visible;
}

template <class T>
void rebuild_P(BackwardTile<T>& tile, MatrixIn<T> Qi, MatrixIn<T> Kj, VectorIn<T> m,
               VectorIn<T> l, T scale, std::span<const Index> visible) {
  // [begin 06.rebuild-p]
  // [10] the scores again
  tile.P.noalias() = Qi * Kj.transpose();
  tile.P *= scale;

  // [11] the saved m and l turn them into final weights: nothing is carried from tile to tile.
  // Hidden scores are left alone, since they may be larger than m
  for (Index r = 0; r < tile.P.rows(); ++r) {
    const Index seen = visible[static_cast<std::size_t>(r)];
    if (seen == 0) continue;
    auto row = tile.P.row(r).head(seen).array();
    exp_minus(row, m[r]);
    row /= l[r];
  }
  // [end]
}

template <class T>
void compute_dP(BackwardTile<T>& tile, MatrixIn<T> dOi, MatrixIn<T> Vj) {
  tile.dS.noalias() = dOi * Vj.transpose();
}

template <class T>
void compute_dS(BackwardTile<T>& tile, VectorIn<T> delta, std::span<const Index> visible) {
  // [begin 06.compute-ds]
  for (Index r = 0; r < tile.dS.rows(); ++r) {
    const Index seen = visible[static_cast<std::size_t>(r)];
    auto row = tile.dS.row(r).head(seen).array();
    row = tile.P.row(r).head(seen).array() * (row - delta[r]);
  }
  // [end]
}

template <class T>
void add_dV(MatrixOut<T> dVj, const BackwardTile<T>& tile, MatrixIn<T> dOi,
            std::span<const Index> visible) {
  add_transposed<T>(dVj, T(1), tile.P, dOi, visible);
}

template <class T>
void add_dQ(MatrixOut<T> dQi, const BackwardTile<T>& tile, MatrixIn<T> Kj, T scale,
            std::span<const Index> visible) {
  // [begin 06.add-dq]
  if (all_use_all(visible, Kj.rows())) {
    dQi.noalias() += scale * tile.dS * Kj;
  } else {
    for (Index r = 0; r < dQi.rows(); ++r) {
      const Index seen = visible[static_cast<std::size_t>(r)];
      dQi.row(r).noalias() += scale * tile.dS.row(r).head(seen) * Kj.topRows(seen);
    }
  }
  // [end]
}

template <class T>
void add_dK(MatrixOut<T> dKj, const BackwardTile<T>& tile, MatrixIn<T> Qi, T scale,
            std::span<const Index> visible) {
  add_transposed<T>(dKj, scale, tile.dS, Qi, visible);
}

template std::vector<Index> count_used_keys<float>(VectorIn<float>, Index, Index, Index, Index);
template void rebuild_P<float>(BackwardTile<float>&, MatrixIn<float>, MatrixIn<float>,
                               VectorIn<float>, VectorIn<float>, float, std::span<const Index>);
template void compute_dP<float>(BackwardTile<float>&, MatrixIn<float>, MatrixIn<float>);
template void compute_dS<float>(BackwardTile<float>&, VectorIn<float>, std::span<const Index>);
template void add_dV<float>(MatrixOut<float>, const BackwardTile<float>&, MatrixIn<float>,
                            std::span<const Index>);
template void add_dQ<float>(MatrixOut<float>, const BackwardTile<float>&, MatrixIn<float>,
                            float, std::span<const Index>);
template void add_dK<float>(MatrixOut<float>, const BackwardTile<float>&, MatrixIn<float>,
                            float, std::span<const Index>);
template std::vector<Index> count_used_keys<double>(VectorIn<double>, Index, Index, Index,
                                                    Index);
template void rebuild_P<double>(BackwardTile<double>&, MatrixIn<double>, MatrixIn<double>,
                                VectorIn<double>, VectorIn<double>, double,
                                std::span<const Index>);
template void compute_dP<double>(BackwardTile<double>&, MatrixIn<double>, MatrixIn<double>);
template void compute_dS<double>(BackwardTile<double>&, VectorIn<double>,
                                 std::span<const Index>);
template void add_dV<double>(MatrixOut<double>, const BackwardTile<double>&, MatrixIn<double>,
                             std::span<const Index>);
template void add_dQ<double>(MatrixOut<double>, const BackwardTile<double>&, MatrixIn<double>,
                             double, std::span<const Index>);
template void add_dK<double>(MatrixOut<double>, const BackwardTile<double>&, MatrixIn<double>,
                             double, std::span<const Index>);

}  // namespace flash_steps

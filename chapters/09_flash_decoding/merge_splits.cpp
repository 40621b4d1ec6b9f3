#include "chapters/09_flash_decoding/merge_splits.hpp"

#include <cmath>

#include "common/tensor/parallel_for.hpp"

namespace flash_steps {
namespace {

// One part after another. The running result is kept as a maximum m of LSEs, and l and o
// relative to it: chapter 03's state, with a part in the place of a key.
template <class T>
T merge_sequential(const SplitParts<T>& parts, Index row, Eigen::Ref<Vector<T>> o) {
  const Index splits = parts.LSE.rows(), rows = parts.LSE.cols();
  T m = -kInf<T>, l = 0;
  o.setZero();
  // [begin 09.merge]
  for (Index s = 0; s < splits; ++s) {
    const T lse = parts.LSE(s, row);
    if (lse == -kInf<T>) continue;  // empty: its o may be anything
    const T m_new = std::max(m, lse);
    const T alpha = std::exp(m - m_new), weight = std::exp(lse - m_new);
    l = alpha * l + weight;
    o = alpha * o + weight * parts.O.row(s * rows + row).transpose();
    m = m_new;
  }
  if (l != T(0)) o /= l;  // else no part has a key
  return m + std::log(l);
  // [end]
}

// In pairs, in place: after the round with distance n, part s = 0, 2n, 4n, ... is the merged
// result of the parts s .. s + 2n - 1.
template <class T>
T merge_tree(SplitParts<T>& parts, Index row, Eigen::Ref<Vector<T>> o) {
  const Index splits = parts.LSE.rows(), rows = parts.LSE.cols();
  // [begin 09.merge-tree]
  for (Index n = 1; n < splits; n *= 2) {
    for (Index s = 0; s + n < splits; s += 2 * n) {
      const T b = parts.LSE(s + n, row);
      T& a = parts.LSE(s, row);
      auto o_a = parts.O.row(s * rows + row);
      const auto o_b = parts.O.row((s + n) * rows + row);
      if (b == -kInf<T>) continue;  // nothing to take in
      if (a == -kInf<T>) {
        o_a = o_b;
        a = b;
        continue;
      }
      const T m = std::max(a, b), w_a = std::exp(a - m), w_b = std::exp(b - m);
      o_a = (w_a * o_a + w_b * o_b) / (w_a + w_b);
      a = m + std::log(w_a + w_b);
    }
  }
  // [end]
  const T lse = parts.LSE(0, row);
  if (lse == -kInf<T>) {
    o.setZero();  // no part has a key
  } else {
    o = parts.O.row(row).transpose();
  }
  return lse;
}

}  // namespace

template <class T>
void merge_rows(SplitParts<T>& parts, Index row, Index rows, HeadsView<T> O, MatrixOut<T> LSE,
                Merge merge) {
  Vector<T> o(O.d());
  for (Index r = row; r < row + rows; ++r) {
    const Index head = r / O.N(), n = r % O.N();  // of all B * H heads; of its queries
    const T lse =
        merge == Merge::tree ? merge_tree<T>(parts, r, o) : merge_sequential<T>(parts, r, o);
    O.head(head / O.H(), head % O.H()).row(n) = o.transpose();
    LSE(head, n) = lse;
  }
}

template <class T>
void merge_splits_cpu(SplitParts<T>& parts, HeadsView<T> O, MatrixOut<T> LSE, Merge merge) {
  parallel_for(parts.LSE.cols(), true,
               [&](Index row) { merge_rows<T>(parts, row, 1, O, LSE, merge); });
}

template void merge_rows<float>(SplitParts<float>&, Index, Index, HeadsView<float>,
                                MatrixOut<float>, Merge);
template void merge_splits_cpu<float>(SplitParts<float>&, HeadsView<float>, MatrixOut<float>,
                                      Merge);
template void merge_rows<double>(SplitParts<double>&, Index, Index, HeadsView<double>,
                                 MatrixOut<double>, Merge);
template void merge_splits_cpu<double>(SplitParts<double>&, HeadsView<double>,
                                       MatrixOut<double>, Merge);

}  // namespace flash_steps

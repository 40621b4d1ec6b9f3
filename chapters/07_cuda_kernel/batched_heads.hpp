// The backward pass over a batch of heads, on the CPU: what does not depend on how one head is
// done. Chapter 12 does heads with dropout in them. The marks [n] are those of
// batched_backward.hpp.
#pragma once

#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// Calls add_head(b, h, kv, m, l, D) for each query head h of each batch b, kv being its
// key/value head: dQ, dK and dV are 0 before, and D (Nq) = rowsum(dO * O) - dLSE lies in
// `delta`. With m = LSE and l = 1, or 0 for rows without keys, (Nq) each, exp(S - m) / l are
// the weights. The heads of a group are done one after another, always in the same order;
// groups at the same time. Shapes as in batched_backward_cpu, which has checked them.
template <class T, class AddHead>
void for_each_head_gradient(HeadsView<const T> O, MatrixIn<T> LSE, HeadsView<const T> dO,
                            MatrixOut<T> delta, HeadsView<T> dQ, HeadsView<T> dK,
                            HeadsView<T> dV, const Matrix<T>* dLSE, const AddHead& add_head) {
  const Index H = dQ.H(), Hkv = dK.H();
  // [begin 07.batched-backward]
  // one turn: a key/value head, with all the query heads that share it. They add to its dK and
  // dV one after another, always in the same order
  parallel_for(dQ.B() * Hkv, true, [&](Index index) {
    const Index b = index / Hkv, kv = index % Hkv, group = H / Hkv;
    dK.head(b, kv).setZero();  // [7]
    dV.head(b, kv).setZero();
    for (Index h = kv * group; h < (kv + 1) * group; ++h) {
      // exp(S - LSE) is exp(S - m) / l with m = LSE and l = 1; or l = 0, if there was no key
      const Vector<T> m = LSE.row(b * H + h).transpose();
      const Vector<T> l = (m.array() != -kInf<T>).template cast<T>();
      const Vector<T> dm = dLSE ? Vector<T>(dLSE->row(b * H + h).transpose()) : Vector<T>();
      const auto D = delta.row(b * H + h).transpose();
      compute_delta<T>(dO.head(b, h), O.head(b, h), dLSE ? &dm : nullptr, D);  // [4]
      dQ.head(b, h).setZero();                                                 // [3]
      add_head(b, h, kv, m, l, D);                                             // [5]-[19]
    }
  });
  // [end]
}

}  // namespace flash_steps

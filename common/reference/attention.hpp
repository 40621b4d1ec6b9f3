// The oracle: attention in float64, one query row and one key at a time, written as plainly as
// possible. It is slow, keeps whole rows of scores, and is what every chapter is tested
// against; tests/golden in turn checks it against PyTorch.
//
//   S_ij  = scale * sum_c Q_ic K_jc    score of key j for query i; only if i sees j
//   m_i   = max_j S_ij
//   l_i   = sum_j exp(S_ij - m_i)
//   P_ij  = exp(S_ij - m_i) / l_i      each row sums to 1
//   O_ic  = sum_j P_ij V_jc
//   LSE_i = m_i + ln l_i               natural logarithm: exp(LSE_i) = sum_j exp(S_ij)
//
// Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), equation 1;
// m, l and LSE as in Dao 2023, FlashAttention-2 (arXiv:2307.08691), section 3.1, where LSE is
// called L.
#pragma once

#include <optional>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

struct ReferenceOptions {
  std::optional<double> scale = {};  // without a value: 1 / sqrt(d). Zero, negative: allowed
  bool causal = false;               // key j is visible to query i iff j <= i + Nk - Nq
  bool keep_P = false;               // return the (Nq, Nk) weights too
};

struct ReferenceResult {
  Matrix<double> O;    // (Nq, d)
  Vector<double> m;    // (Nq)  largest visible score
  Vector<double> l;    // (Nq)  from 1 to Nk; 0 for a row that sees no key
  Vector<double> LSE;  // (Nq)
  Matrix<double> P;    // (Nq, Nk) if keep_P, with 0 for hidden keys; else (0, 0)
};

// Q (Nq, d), K and V (Nk, d); Nq and Nk may be 0, d must be at least 1.
//
// Causal is bottom-right aligned: the last query sees all keys. (PyTorch's is_causal is
// top-left aligned; the two agree where Nq = Nk.) With Nq > Nk the first Nq - Nk queries see
// nothing.
//
// Edges:
// - A row that sees no key, or whose visible scores are all -inf, has O = 0, m = -inf, l = 0,
//   LSE = -inf and P = 0, even if its query is NaN.
// - Any other row with a NaN score has NaN in all of O, l and LSE. So NaN in Q_i reaches row i,
//   and NaN in K_j the rows that see key j. A score of +inf does the same: exp(inf - inf) is
//   NaN. m of such a row is unspecified.
// - NaN in V_jc makes O_ic NaN for the rows that see key j, whatever its weight (0 times NaN is
//   NaN); m, l and LSE do not depend on V.
// - Keys that a row does not see never enter its arithmetic: NaN there changes nothing.
//
// Throws std::invalid_argument if the shapes disagree, d = 0, or the scale is not finite.
ReferenceResult reference_attention(MatrixIn<double> Q, MatrixIn<double> K, MatrixIn<double> V,
                                    const ReferenceOptions& options = {});

}  // namespace flash_steps

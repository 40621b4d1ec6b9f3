// The oracle: attention and its gradients in float64, one query row and one key at a time,
// written as plainly as possible. It is slow, keeps whole rows of scores, and is what every
// chapter is tested against; tests/golden in turn checks it against PyTorch. This is one head;
// heads.hpp has batches.
//
//   S_ij  = scale * sum_c Q_ic K_jc    score of key j for query i; only if i sees j
//   m_i   = max_j S_ij
//   l_i   = sum_j exp(S_ij - m_i)
//   P_ij  = exp(S_ij - m_i) / l_i      each row sums to 1
//   O_ic  = sum_j P_ij V_jc
//   LSE_i = m_i + ln l_i               natural logarithm: exp(LSE_i) = sum_j exp(S_ij)
//
// With dropout, Z_ij = 1/(1-p) where the mask keeps the weight and 0 where it drops it (without
// dropout Z_ij = 1), and
//
//   O_ic  = sum_j Z_ij P_ij V_jc       m, l, LSE and P are those without dropout
//
// Backward, from dO and, where a loss uses LSE itself, dLSE:
//
//   D_i   = sum_c dO_ic O_ic                     O after dropout
//   dV_jc = sum_i Z_ij P_ij dO_ic
//   dP_ij = Z_ij sum_c dO_ic V_jc
//   dS_ij = P_ij (dP_ij - D_i + dLSE_i)
//   dQ_ic = scale * sum_j dS_ij K_jc
//   dK_jc = scale * sum_i dS_ij Q_ic
//
// Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), equation 1;
// m, l and LSE as in Dao 2023, FlashAttention-2 (arXiv:2307.08691), section 3.1, where LSE is
// called L.
#pragma once

#include <cstdint>
#include <optional>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

struct ReferenceOptions {
  std::optional<double> scale = {};  // without a value: 1 / sqrt(d). Zero, negative: allowed
  bool causal = false;               // key j is visible to query i iff j <= i + Nk - Nq
  bool keep_P = false;               // return the (Nq, Nk) weights too
  double dropout = 0;                // the p of 1/(1-p), 0 <= p < 1; above 0 it needs a mask
  const Matrix<std::uint8_t>* mask = nullptr;  // (Nq, Nk), 0 = dropped, else kept
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
// - A dropped key is still a visible one: its weight is 0, and 0 times NaN is NaN. A row whose
//   weights were all dropped has O = 0, but its own m, l and LSE.
//
// Throws std::invalid_argument if the shapes disagree, d = 0, the scale is not finite, dropout
// is not in [0, 1), or is above 0 without a mask.
ReferenceResult reference_attention(MatrixIn<double> Q, MatrixIn<double> K, MatrixIn<double> V,
                                    const ReferenceOptions& options = {});

struct ReferenceGradients {
  Matrix<double> dQ;      // (Nq, d)
  Matrix<double> dK, dV;  // (Nk, d)
};

// dO (Nq, d) is the gradient of a loss for O, dLSE (Nq) that for LSE (null: 0); the result is
// the gradient for Q, K and V. The rest as above; keep_P is not looked at.
//
// Edges:
// - A row that sees no key, or whose visible scores are all -inf, adds nothing to dK and dV and
//   has dQ = 0, whatever its Q, dO and dLSE hold. No keys: dQ = 0. No queries: dK = dV = 0.
// - NaN in any other row's dO_ic reaches dQ_i, dK_j of the keys j that the row sees, and dV_jc.
//   NaN in its dLSE_i reaches dQ_i and those dK_j, not dV. NaN in its scores (Q_i, or a visible
//   K_j) reaches dQ_i, and dK_j and dV_j of all keys that it sees.
// - NaN in V_jc reaches dQ_i of the rows that see key j, and dK of all keys that those rows
// see;
//   not dV.
// - Weights of 0 do not hide infinities: a visible K_j of -inf has weight 0, and 0 times inf
//   makes dQ_i NaN.
// - Keys that a row does not see never enter its arithmetic, nor it theirs.
// - With scale 0, dQ = dK = 0 (where nothing is NaN) and dV is not.
//
// Throws std::invalid_argument as reference_attention does, or if dO or dLSE has another shape.
ReferenceGradients reference_backward(MatrixIn<double> Q, MatrixIn<double> K,
                                      MatrixIn<double> V, MatrixIn<double> dO,
                                      const ReferenceOptions& options = {},
                                      const Vector<double>* dLSE = nullptr);

}  // namespace flash_steps

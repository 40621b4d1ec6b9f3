#include "common/reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/tensor/require.hpp"
#include "common/tensor/scale.hpp"

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "build without -ffast-math: it removes the NaN and infinity that attention is defined by"
#endif

namespace flash_steps {
namespace {

void require_shape(const char* name, MatrixIn<double> X, Index rows, Index cols) {
  require(X.rows() == rows && X.cols() == cols,
          std::string(name) + " must be (Nk, d) = (" + std::to_string(rows) + ", " +
              std::to_string(cols) + "), found (" + std::to_string(X.rows()) + ", " +
              std::to_string(X.cols()) + ")");
}

}  // namespace

ReferenceResult reference_attention(MatrixIn<double> Q, MatrixIn<double> K, MatrixIn<double> V,
                                    const ReferenceOptions& options) {
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  const double scale = resolve_scale<double>(options.scale, d);
  require_shape("K", K, Nk, d);
  require_shape("V", V, Nk, d);

  // What a row that sees no key keeps.
  ReferenceResult result;
  result.O = Matrix<double>::Zero(Nq, d);
  result.m = Vector<double>::Constant(Nq, -kInf<double>);
  result.l = Vector<double>::Zero(Nq);
  result.LSE = Vector<double>::Constant(Nq, -kInf<double>);
  if (options.keep_P) result.P = Matrix<double>::Zero(Nq, Nk);

  for (Index i = 0; i < Nq; ++i) {
    // Query i sees the keys j <= i + Nk - Nq, that is the first `visible` ones. The others are
    // left out of every loop below rather than given weight 0: 0 times NaN would be NaN.
    const Index visible = options.causal ? std::max<Index>(0, i + Nk - Nq + 1) : Nk;

    // S_ij = scale * sum_c Q_ic K_jc
    Vector<double> S(visible);
    for (Index j = 0; j < visible; ++j) {
      double dot = 0;
      for (Index c = 0; c < d; ++c) dot += Q(i, c) * K(j, c);
      S(j) = scale * dot;
    }

    // m_i = max_j S_ij, after scaling, so that a negative scale is right too. NaN must win: a
    // plain comparison would drop it, and a row of NaN would look like one without keys.
    double m = -kInf<double>;
    for (Index j = 0; j < visible; ++j) {
      if (S(j) > m || std::isnan(S(j))) m = S(j);
    }
    if (m == -kInf<double>) continue;  // no visible key, or only scores of -inf

    // l_i = sum_j exp(S_ij - m_i). The largest score contributes exp(0) = 1 exactly.
    double l = 0;
    for (Index j = 0; j < visible; ++j) l += std::exp(S(j) - m);

    // P_ij = exp(S_ij - m_i) / l_i  and  O_ic = sum_j P_ij V_jc
    for (Index j = 0; j < visible; ++j) {
      const double P = std::exp(S(j) - m) / l;
      for (Index c = 0; c < d; ++c) result.O(i, c) += P * V(j, c);
      if (options.keep_P) result.P(i, j) = P;
    }

    result.m(i) = m;
    result.l(i) = l;
    result.LSE(i) = m + std::log(l);
  }
  return result;
}

}  // namespace flash_steps

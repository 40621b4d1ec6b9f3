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

std::string shape_text(Index rows, Index cols) {
  return "(" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
}

// axes: what the shape's sizes are, "(Nk, d)".
template <class M>
void require_shape(const char* name, const M& X, const char* axes, Index rows, Index cols) {
  require(X.rows() == rows && X.cols() == cols, std::string(name) + " must be " + axes + " = " +
                                                    shape_text(rows, cols) + ", found " +
                                                    shape_text(X.rows(), X.cols()));
}

void check(MatrixIn<double> Q, MatrixIn<double> K, MatrixIn<double> V,
           const ReferenceOptions& options) {
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  resolve_scale<double>(options.scale, d);  // throws
  require_shape("K", K, "(Nk, d)", Nk, d);
  require_shape("V", V, "(Nk, d)", Nk, d);
  require(options.dropout >= 0 && options.dropout < 1,  // NaN is neither
          "dropout must be at least 0 and below 1, found " + std::to_string(options.dropout));
  require(options.dropout == 0 || options.mask != nullptr, "dropout above 0 needs a mask");
  if (options.mask != nullptr) require_shape("the mask", *options.mask, "(Nq, Nk)", Nq, Nk);
}

// Query i sees the keys j <= i + Nk - Nq, that is the first visible_keys(i) ones. The others
// are left out of every loop below rather than given weight 0: 0 times NaN would be NaN.
Index visible_keys(Index i, Index Nq, Index Nk, bool causal) {
  return causal ? std::max<Index>(0, i + Nk - Nq + 1) : Nk;
}

// Z_ij: what dropout multiplies the weight of key j for query i by.
double dropout_factor(const ReferenceOptions& options, Index i, Index j) {
  if (options.mask == nullptr) return 1;
  return (*options.mask)(i, j) != 0 ? 1 / (1 - options.dropout) : 0;
}

}  // namespace

ReferenceResult reference_attention(MatrixIn<double> Q, MatrixIn<double> K, MatrixIn<double> V,
                                    const ReferenceOptions& options) {
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  check(Q, K, V, options);
  const double scale = resolve_scale<double>(options.scale, d);

  // What a row that sees no key keeps.
  ReferenceResult result;
  result.O = Matrix<double>::Zero(Nq, d);
  result.m = Vector<double>::Constant(Nq, -kInf<double>);
  result.l = Vector<double>::Zero(Nq);
  result.LSE = Vector<double>::Constant(Nq, -kInf<double>);
  if (options.keep_P) result.P = Matrix<double>::Zero(Nq, Nk);

  for (Index i = 0; i < Nq; ++i) {
    const Index visible = visible_keys(i, Nq, Nk, options.causal);

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

    // P_ij = exp(S_ij - m_i) / l_i  and  O_ic = sum_j Z_ij P_ij V_jc
    for (Index j = 0; j < visible; ++j) {
      const double P = std::exp(S(j) - m) / l;
      const double ZP = dropout_factor(options, i, j) * P;
      for (Index c = 0; c < d; ++c) result.O(i, c) += ZP * V(j, c);
      if (options.keep_P) result.P(i, j) = P;
    }

    result.m(i) = m;
    result.l(i) = l;
    result.LSE(i) = m + std::log(l);
  }
  return result;
}

ReferenceGradients reference_backward(MatrixIn<double> Q, MatrixIn<double> K,
                                      MatrixIn<double> V, MatrixIn<double> dO,
                                      const ReferenceOptions& options,
                                      const Vector<double>* dLSE) {
  const Index Nq = Q.rows(), Nk = K.rows(), d = Q.cols();
  check(Q, K, V, options);
  require_shape("dO", dO, "(Nq, d)", Nq, d);
  if (dLSE != nullptr) require_shape("dLSE", *dLSE, "(Nq, 1)", Nq, 1);
  const double scale = resolve_scale<double>(options.scale, d);

  ReferenceOptions forward = options;
  forward.keep_P = true;
  const ReferenceResult result = reference_attention(Q, K, V, forward);

  ReferenceGradients gradients;
  gradients.dQ = Matrix<double>::Zero(Nq, d);
  gradients.dK = Matrix<double>::Zero(Nk, d);
  gradients.dV = Matrix<double>::Zero(Nk, d);

  for (Index i = 0; i < Nq; ++i) {
    if (result.l(i) == 0) continue;  // sees no key: nothing of it may enter, not even times 0

    // D_i = sum_c dO_ic O_ic
    double D = 0;
    for (Index c = 0; c < d; ++c) D += dO(i, c) * result.O(i, c);

    const Index visible = visible_keys(i, Nq, Nk, options.causal);
    for (Index j = 0; j < visible; ++j) {
      const double Z = dropout_factor(options, i, j), P = result.P(i, j);

      // dP_ij = Z_ij sum_c dO_ic V_jc  and  dS_ij = P_ij (dP_ij - D_i + dLSE_i)
      double dot = 0;
      for (Index c = 0; c < d; ++c) dot += dO(i, c) * V(j, c);
      const double dP = Z * dot;
      const double dS = P * (dP - D + (dLSE == nullptr ? 0.0 : (*dLSE)(i)));

      for (Index c = 0; c < d; ++c) {
        gradients.dQ(i, c) += scale * dS * K(j, c);
        gradients.dK(j, c) += scale * dS * Q(i, c);
        gradients.dV(j, c) += Z * P * dO(i, c);
      }
    }
  }
  return gradients;
}

}  // namespace flash_steps

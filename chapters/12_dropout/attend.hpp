// Attention with dropout on the CPU and on the device, from and to arrays on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/12_dropout/dropout_backward.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"
#include "common/device/eigen.hpp"

namespace flash_steps {

using Mask = HeadsArray<std::uint8_t>;

template <class T>
struct Problem {
  HeadsArray<T> Q, K, V;
  std::optional<HeadsArray<T>> dO;
  Dropout dropout;
  std::optional<Mask> mask;  // in place of the computed one
  Tiling tile;
  bool causal = false;
  std::optional<double> scale;
};

template <class T>
struct Result {
  HeadsArray<T> O;
  Matrix<T> LSE;
  HeadsArray<T> dQ, dK, dV;  // if there is a dO
};

template <class T>
Result<T> compute_on_cpu(const Problem<T>& x) {
  const auto like = [](const HeadsArray<T>& a) {
    return HeadsArray<T>(a.B(), a.H(), a.N(), a.d());
  };
  std::optional<HeadsView<const std::uint8_t>> mask;
  if (x.mask) mask.emplace(x.mask->view());
  const auto* stored = mask ? &*mask : nullptr;

  Result<T> y{like(x.Q), Matrix<T>(x.Q.B() * x.Q.H(), x.Q.N()), {}, {}, {}};
  dropout_forward_cpu<T>(x.Q.view(), x.K.view(), x.V.view(), y.O.view(), y.LSE, x.dropout,
                         x.tile, x.causal, x.scale, stored);
  if (!x.dO) return y;
  y.dQ = like(x.Q);
  y.dK = like(x.K);
  y.dV = like(x.K);
  Matrix<T> delta(y.LSE.rows(), y.LSE.cols());
  const HeadsView<const T> O = y.O.view();
  dropout_backward_cpu<T>(x.Q.view(), x.K.view(), x.V.view(), O, y.LSE, x.dO->view(), delta,
                          y.dQ.view(), y.dK.view(), y.dV.view(), x.dropout, x.tile, x.causal,
                          x.scale, stored);
  return y;
}

// The device computes in float32.
template <class T>
Result<T> compute_on_device(const Problem<T>& x) {
  const auto upload = [](const HeadsArray<T>& a) {
    return to_device(a.template cast<float>());
  };
  const auto Q = upload(x.Q), K = upload(x.K), V = upload(x.V);
  std::optional<DeviceHeads<std::uint8_t>> mask;
  if (x.mask) mask.emplace(to_device(*x.mask));
  const auto* stored = mask ? &*mask : nullptr;

  DeviceHeads<float> O(Q.layout());
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  dropout_forward_cuda(Q, K, V, O, LSE, x.dropout, x.tile, x.causal, x.scale, stored);
  Result<T> y{to_host(O).template cast<T>(), to_host(LSE).template cast<T>(), {}, {}, {}};
  if (!x.dO) return y;
  const auto dO = upload(*x.dO);
  DeviceHeads<float> dQ(Q.layout()), dK(K.layout()), dV(V.layout());
  DeviceMatrix<float> delta(LSE.rows(), LSE.cols());
  dropout_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, x.dropout, x.tile, x.causal,
                        x.scale, stored);
  y.dQ = to_host(dQ).template cast<T>();
  y.dK = to_host(dK).template cast<T>();
  y.dV = to_host(dV).template cast<T>();
  return y;
}

inline Mask computed_mask(Index B, Index H, Index Nq, Index Nk, const Dropout& dropout,
                          bool on_device) {
  Mask kept(B, H, Nq, Nk);
  if (!on_device) {
    dropout_mask_cpu(kept.view(), dropout);
    return kept;
  }
  DeviceHeads<std::uint8_t> device(B, H, Nq, Nk);
  dropout_mask_cuda(device, dropout);
  return to_host(device);
}

}  // namespace flash_steps

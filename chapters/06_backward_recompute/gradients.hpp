// The gradients on the CPU and on the device, from and to arrays that lie on the host.
#pragma once

#include <optional>

#include "chapters/05_saved_statistics/saved_forward.hpp"
#include "chapters/05_saved_statistics/saved_forward_cuda.hpp"
#include "chapters/06_backward_recompute/backward_recompute.hpp"
#include "chapters/06_backward_recompute/backward_recompute_cuda.hpp"
#include "common/device/eigen.hpp"

namespace flash_steps {

template <class T>
struct Inputs {
  Matrix<T> Q, K, V, dO;
  std::optional<Vector<T>> dLSE;
};

template <class T>
struct Gradients {
  Matrix<T> dQ, dK, dV;
  Index empty_rows = 0;
};

struct Options {
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
};

template <class T>
Gradients<T> gradients_cpu(const Inputs<T>& in, const Options& o) {
  const Index Nq = in.Q.rows(), Nk = in.K.rows(), d = in.Q.cols();
  Matrix<T> O(Nq, d);
  Vector<T> m(Nq), l(Nq), LSE(Nq), delta(Nq);
  saved_forward_cpu<T>(in.Q, in.K, in.V, O, m, l, LSE, o.tile, o.causal, o.scale);
  Gradients<T> g{Matrix<T>(Nq, d), Matrix<T>(Nk, d), Matrix<T>(Nk, d)};
  backward_recompute_cpu<T>(in.Q, in.K, in.V, O, m, l, in.dO, delta, g.dQ, g.dK, g.dV, o.tile,
                            o.causal, o.scale, in.dLSE ? &*in.dLSE : nullptr);
  g.empty_rows = (l.array() == T(0)).count();
  return g;
}

// Forward and backward on the device; with `traffic`, what the backward pass alone moved.
inline Gradients<float> gradients_cuda(const Inputs<float>& in, const Options& o,
                                       BackwardForm form,
                                       std::optional<Traffic>* traffic = nullptr) {
  const Index Nq = in.Q.rows(), Nk = in.K.rows(), d = in.Q.cols();
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V),
             dO = to_device(in.dO);
  DeviceMatrix<float> O(Nq, d), dQ(Nq, d), dK(Nk, d), dV(Nk, d);
  DeviceArray<float> m(Nq), l(Nq), LSE(Nq), delta(Nq);
  saved_forward_cuda(Q, K, V, O, m, l, LSE, o.tile, o.causal, o.scale);
  std::optional<DeviceArray<float>> dLSE;
  if (in.dLSE) dLSE = to_device(*in.dLSE);
  reset_device_traffic();
  backward_recompute_cuda(Q, K, V, O, m, l, dO, delta, dQ, dK, dV, o.tile, o.causal, o.scale,
                          dLSE ? &*dLSE : nullptr, form);
  if (traffic) *traffic = device_traffic();
  return {to_host(dQ), to_host(dK), to_host(dV), (to_host(l).array() == 0).count()};
}

}  // namespace flash_steps

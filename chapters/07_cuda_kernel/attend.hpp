// Attention and its gradients on the CPU and on the device, from and to arrays on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/07_cuda_kernel/rungs/rungs.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/attention_input.hpp"

namespace flash_steps {

template <class T>
struct Forward {
  HeadsArray<T> O;
  Matrix<T> LSE;
};

template <class T>
struct Gradients {
  HeadsArray<T> dQ, dK, dV;
};

struct Settings {
  Tiling tile = {}, backward_tile = {};
  bool causal = false;
  std::optional<double> scale = {};
  std::optional<std::int64_t> rung = {};
};

template <class T>
Forward<T> forward_cpu(const Batch<T>& in, const Settings& settings) {
  const HeadsArray<T>& Q = in.Q;
  Forward<T> out{HeadsArray<T>(Q.B(), Q.H(), Q.N(), Q.d()), Matrix<T>(Q.B() * Q.H(), Q.N())};
  batched_forward_cpu<T>(Q.view(), in.K.view(), in.V.view(), out.O.view(), out.LSE,
                         settings.tile, settings.causal, settings.scale);
  return out;
}

template <class T>
Gradients<T> backward_cpu(const Batch<T>& in, const Forward<T>& saved, const HeadsArray<T>& dO,
                          const Matrix<T>* dLSE, const Settings& settings) {
  Gradients<T> out{in.Q, in.K, in.V};  // of their shapes
  Matrix<T> delta(saved.LSE.rows(), saved.LSE.cols());
  batched_backward_cpu<T>(in.Q.view(), in.K.view(), in.V.view(), saved.O.view(), saved.LSE,
                          dO.view(), delta, out.dQ.view(), out.dK.view(), out.dV.view(),
                          settings.backward_tile, settings.causal, settings.scale, dLSE);
  return out;
}

inline Forward<float> forward_device(const Batch<float>& in, const Settings& settings) {
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  DeviceHeads<float> O(Q.layout());
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  if (settings.rung) {
    forward_rung(*settings.rung, Q, K, V, O, LSE, settings.causal, settings.scale);
  } else {
    batched_forward_cuda(Q, K, V, O, LSE, settings.tile, settings.causal, settings.scale);
  }
  return {to_host(O), to_host(LSE)};
}

inline Gradients<float> backward_device(const Batch<float>& in, const Forward<float>& saved,
                                        const HeadsArray<float>& dO, const Matrix<float>* dLSE,
                                        const Settings& settings) {
  const auto Q = to_device(in.Q), K = to_device(in.K), V = to_device(in.V);
  const auto device_dLSE = dLSE ? to_device(*dLSE) : DeviceMatrix<float>();
  DeviceMatrix<float> delta(saved.LSE.rows(), saved.LSE.cols());
  DeviceHeads<float> dQ(Q.layout()), dK(K.layout()), dV(V.layout());
  batched_backward_cuda(Q, K, V, to_device(saved.O), to_device(saved.LSE), to_device(dO), delta,
                        dQ, dK, dV, settings.backward_tile, settings.causal, settings.scale,
                        dLSE ? &device_dLSE : nullptr);
  return {to_host(dQ), to_host(dK), to_host(dV)};
}

}  // namespace flash_steps

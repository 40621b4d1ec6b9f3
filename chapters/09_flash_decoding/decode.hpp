// Decoding on the CPU and on the device, from and to arrays that lie on the host.
#pragma once

#include <optional>

#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/attention_input.hpp"

namespace flash_steps {

template <class T>
struct Decoded {
  HeadsArray<T> O;
  Matrix<T> LSE;
};

template <class T>
Decoded<T> decode_on_cpu(const Batch<T>& in, const DecodingOptions& options) {
  Decoded<T> out{HeadsArray<T>(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d()),
                 Matrix<T>(in.Q.B() * in.Q.H(), in.Q.N())};
  flash_decoding_cpu<T>(in.Q.view(), in.K.view(), in.V.view(), out.O.view(), out.LSE, options);
  return out;
}

// Also says what the kernels moved, if the device counts.
template <class T>
Decoded<T> decode_on_device(const Batch<T>& in, const DecodingOptions& options,
                            std::optional<Traffic>* moved = nullptr) {
  const Batch<float> rounded = in.template cast<float>();
  const auto Q = to_device(rounded.Q), K = to_device(rounded.K), V = to_device(rounded.V);
  DeviceHeads<float> O(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d());
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  reset_device_traffic();
  flash_decoding_cuda(Q, K, V, O, LSE, options);
  if (moved) *moved = device_traffic();
  return {to_host(O).template cast<T>(), to_host(LSE).template cast<T>()};
}

template <class T>
DecodingSizes sizes_of(const Batch<T>& in) {
  return {in.Q.B(), in.Q.H(), in.K.H(), in.Q.N(), in.K.N(), in.Q.d()};
}

}  // namespace flash_steps

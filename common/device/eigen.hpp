// Between Eigen on the host and arrays on the device. Not for .cu files: they never see Eigen.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "common/device/array.hpp"
#include "common/device/heads.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"

namespace flash_steps {

// Copies a matrix (rows, cols) to the device, row-major whatever the host's row stride is.
template <class T>
DeviceMatrix<T> to_device(const Matrix<T>& host) {
  return DeviceMatrix<T>(host.data(), host.rows(), host.cols());
}

template <class T>
DeviceArray<T> to_device(const Vector<T>& host) {
  return DeviceArray<T>(host.data(), host.size());
}

template <class T>
Matrix<T> to_host(const DeviceMatrix<T>& device) {
  Matrix<T> host(device.rows(), device.cols());
  device.download(host.data());
  return host;
}

template <class T>
Vector<T> to_host(const DeviceArray<T>& device) {
  Vector<T> host(device.size());
  device.download(host.data());
  return host;
}

// Copies a batch of heads to the device with the layout that it has; what lies between its rows
// is NaN there. Throws std::invalid_argument for a negative stride.
template <class T>
DeviceHeads<std::remove_const_t<T>> to_device(const HeadsView<T>& host) {
  using Scalar = std::remove_const_t<T>;
  DeviceHeads<Scalar> device(host.layout());
  std::vector<Scalar> memory(static_cast<std::size_t>(device.size()));
  if (!memory.empty()) std::memset(memory.data(), 0xFF, memory.size() * sizeof(Scalar));
  if (!host.empty()) {
    const HeadsView<Scalar> staged(memory.data(), host.layout());
    for (std::int64_t b = 0; b < host.B(); ++b) {
      for (std::int64_t h = 0; h < host.H(); ++h) staged.head(b, h) = host.head(b, h);
    }
  }
  device.upload(memory.data());
  return device;
}

template <class T>
DeviceHeads<T> to_device(const HeadsArray<T>& host) {
  return to_device(host.view());
}

// Contiguous on the host, whatever the layout on the device is.
template <class T>
HeadsArray<T> to_host(const DeviceHeads<T>& device) {
  const std::vector<T> memory = device.download();
  const HeadsView<const T> staged(memory.data(), device.layout());
  HeadsArray<T> host(device.B(), device.H(), device.N(), device.d());
  for (std::int64_t b = 0; b < device.B(); ++b) {
    for (std::int64_t h = 0; h < device.H(); ++h) host.head(b, h) = staged.head(b, h);
  }
  return host;
}

}  // namespace flash_steps

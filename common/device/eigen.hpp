// Between Eigen on the host and arrays on the device. Not for .cu files: they never see Eigen.
#pragma once

#include "common/device/array.hpp"
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

}  // namespace flash_steps

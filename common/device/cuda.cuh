// kernel.hpp for nvcc: names for what CUDA has already.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/device/array.hpp"
#include "common/device/launch.hpp"

namespace flash_steps {

// An alias and no struct: a struct would lose __restrict__, and with it the read-only loads.
template <class T>
using global = T* __restrict__;

template <class T>
using shared = T*;

template <class T, int N>
using shared_array = T[N];

template <class To, class From>
__device__ To* as(From* p) {
  return reinterpret_cast<To*>(p);
}

// The dynamic shared memory of a block, handed out front to back. Every thread takes the same
// pieces in the same order. T may be any type of 4, 8 or 16 bytes; pieces stay aligned to 16
// bytes.
class dynamic_shared {
 public:
  template <class T>
  __device__ shared<T> take(std::int64_t count) {
    extern __shared__ float4 flash_steps_shared_bytes[];
    T* piece = reinterpret_cast<T*>(reinterpret_cast<char*>(flash_steps_shared_bytes) + used_);
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 15) / 16 * 16;
    return piece;
  }

 private:
  std::int64_t used_ = 0;
};

template <class T>
T* kernel_argument(DeviceArray<T>& array) {
  return array.data();
}
template <class T>
const T* kernel_argument(const DeviceArray<T>& array) {
  return array.data();
}
template <class T>
requires std::is_trivially_copyable_v<T> T kernel_argument(T value) { return value; }

// Runs the kernel on the current device, asynchronously. Arrays are passed as they are,
// DeviceArray by DeviceArray. Throws std::invalid_argument for a launch that cannot be,
// DeviceError for one that fails.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  check_launch(config);
  Launch given = config;  // dynamic_shared's pieces end at multiples of 16 bytes, and the
  given.shared_bytes = (config.shared_bytes + 15) / 16 * 16;  // compiler may load all of one
  before_launch(reinterpret_cast<const void*>(kernel), given);
  const auto dim = [](const Extent& e) {
    return dim3(static_cast<unsigned>(e.x), static_cast<unsigned>(e.y),
                static_cast<unsigned>(e.z));
  };
  kernel<<<dim(config.grid), dim(config.block), static_cast<std::size_t>(given.shared_bytes)>>>(
      Parameters{kernel_argument(arguments)}...);
  after_launch();
}

}  // namespace flash_steps

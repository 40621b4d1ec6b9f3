// A batch of heads [B, H, N, d] on the device.
#pragma once

#include <cstdint>

#include "common/device/array.hpp"
#include "common/tensor/layout.hpp"

namespace flash_steps {

// Memory on the device and where its heads lie in it. A kernel gets both, and finds row n of
// head (b, h) by signed 64-bit arithmetic:
//
//   __global__ void x_kernel(global<const float> Q, HeadsLayout Q_at, ...) {
//     ... Q[Q_at.offset(b, h, n) + c] ...
//   }
//   launch(x_kernel, {...}, Q, Q.layout(), ...);   // Q: DeviceHeads<float>
//
// Strides along B and H may be 0 (one batch or head shared by all); gaps between rows are never
// touched. Whoever writes through it sees to it that no two heads overlap.
template <class T>
class DeviceHeads : public DeviceArray<T> {
 public:
  DeviceHeads() = default;
  // As many elements as the layout reaches, NaN. Throws std::invalid_argument for a layout that
  // check_layout refuses, or a negative stride: element (0, 0, 0, 0) is the first in memory.
  explicit DeviceHeads(const HeadsLayout& layout)
      : DeviceArray<T>(layout_extent(layout)), layout_(layout) {}
  // Contiguous, in the memory order [B, H, N, d].
  DeviceHeads(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d)
      : DeviceHeads(bhnd_layout(B, H, N, d)) {}

  const HeadsLayout& layout() const { return layout_; }
  std::int64_t B() const { return layout_.B; }
  std::int64_t H() const { return layout_.H; }
  std::int64_t N() const { return layout_.N; }
  std::int64_t d() const { return layout_.d; }

 private:
  HeadsLayout layout_;
};

}  // namespace flash_steps

// A batch of heads [B, H, N, d] that owns its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/tensor/view.hpp"

namespace flash_steps {

// Contiguous, in the memory order [B, H, N, d]; a copy copies the elements.
//
//   HeadsArray<float> O(B, H, N, d);
//   x_cpu<float>(Q.view(), K.view(), V.view(), O.view());
//   O.head(b, h)(n, c)
//
// Views and heads are valid as long as the array lives and is not assigned to.
template <class T>
class HeadsArray {
 public:
  HeadsArray() = default;
  // All elements are `value`. Sizes may be 0; throws std::invalid_argument as bhnd_layout does.
  HeadsArray(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d, T value = T(0))
      : layout_(bhnd_layout(B, H, N, d)),
        elements_(static_cast<std::size_t>(B * H * N * d), value) {}

  std::int64_t B() const { return layout_.B; }
  std::int64_t H() const { return layout_.H; }
  std::int64_t N() const { return layout_.N; }
  std::int64_t d() const { return layout_.d; }
  const std::vector<T>& elements() const { return elements_; }
  std::vector<T>& elements() { return elements_; }

  // The same numbers in another type.
  template <class To>
  HeadsArray<To> cast() const {
    HeadsArray<To> result(B(), H(), N(), d());
    std::transform(elements_.begin(), elements_.end(), result.elements().begin(),
                   [](T element) { return static_cast<To>(element); });
    return result;
  }

  HeadsView<T> view() { return {elements_.data(), layout_}; }
  HeadsView<const T> view() const { return {elements_.data(), layout_}; }
  // Head h of batch b, (N, d): a map into this array.
  typename HeadsView<T>::Head head(std::int64_t b, std::int64_t h) { return view().head(b, h); }
  typename HeadsView<const T>::Head head(std::int64_t b, std::int64_t h) const {
    return view().head(b, h);
  }

 private:
  HeadsLayout layout_ = {};
  std::vector<T> elements_;
};

}  // namespace flash_steps

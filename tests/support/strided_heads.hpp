// Batches of heads in any order in memory, with NaN in between.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/device/eigen.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps::test {

enum class Order { bhnd, bnhd, gaps };
inline constexpr Order kOrders[] = {Order::bhnd, Order::bnhd, Order::gaps};

template <class T>
HeadsLayout layout(Order order, const HeadsArray<T>& heads) {
  const Index B = heads.B(), H = heads.H(), N = heads.N(), d = heads.d();
  if (order == Order::bhnd) return bhnd_layout(B, H, N, d);
  if (order == Order::bnhd) return bnhd_layout(B, H, N, d);
  // nothing a multiple of anything, heads outside of batches
  const Index head = N * (d + 3) + 1;
  return {B, H, N, d, head, B * head + 5, d + 3};
}

// Memory in which heads lie so, `shift` elements from its beginning; all the rest is NaN (255
// in bytes).
template <class T>
std::vector<T> laid_out(const HeadsArray<T>& heads, const HeadsLayout& at, Index shift = 0) {
  constexpr T nothing = std::is_floating_point_v<T> ? static_cast<T>(NAN) : static_cast<T>(255);
  std::vector<T> memory(static_cast<std::size_t>(layout_extent(at) + shift), nothing);
  const HeadsView<T> view(memory.data() + shift, at);
  for (Index i = 0; i < at.B * at.H; ++i) {
    view.head(i / at.H, i % at.H) = heads.head(i / at.H, i % at.H);
  }
  return memory;
}

// And back.
template <class T>
HeadsArray<T> taken_out(const std::vector<T>& memory, const HeadsLayout& at, Index shift = 0) {
  HeadsArray<T> heads(at.B, at.H, at.N, at.d);
  const HeadsView<const T> view(memory.data() + shift, at);
  for (Index i = 0; i < at.B * at.H; ++i) {
    heads.head(i / at.H, i % at.H) = view.head(i / at.H, i % at.H);
  }
  return heads;
}

// Memory for heads in some order. `shift` moves it off its alignment.
template <class T>
class StridedHeads {
 public:
  StridedHeads(const HeadsArray<T>& heads, Order order, Index shift = 0)
      : at_(layout(order, heads)), shift_(shift), memory_(laid_out(heads, at_, shift)) {}

  HeadsView<T> view() { return {memory_.data() + shift_, at_}; }
  HeadsView<const T> view() const { return {memory_.data() + shift_, at_}; }
  HeadsArray<T> heads() const { return taken_out(memory_, at_, shift_); }
  const std::vector<T>& memory() const { return memory_; }

 private:
  HeadsLayout at_;
  Index shift_;
  std::vector<T> memory_;
};

// So that check_holds serves for them, too.
template <class T>
HeadsArray<T> to_host(const StridedHeads<T>& heads) {
  return heads.heads();
}

// Such heads on the device.
template <class T>
DeviceHeads<T> to_device(const HeadsArray<T>& heads, Order order) {
  return to_device(StridedHeads(heads, order).view());
}

// What lies between the heads was NaN, and still is: as many elements are no NaN as there are.
template <class T>
bool gaps_untouched(const std::vector<T>& memory, const HeadsArray<T>& heads) {
  const auto is_number = [](T x) { return !std::isnan(x); };
  const auto& elements = heads.elements();
  return std::count_if(memory.begin(), memory.end(), is_number) ==
         std::count_if(elements.begin(), elements.end(), is_number);
}

// The heads of an output, after a check of what lies between them.
template <class T>
HeadsArray<T> taken_out(const StridedHeads<T>& output) {
  HeadsArray<T> heads = output.heads();
  CHECK(gaps_untouched(output.memory(), heads));
  return heads;
}
template <class T>
HeadsArray<T> taken_out(const DeviceHeads<T>& output) {
  HeadsArray<T> heads = to_host(output);
  CHECK(gaps_untouched(output.download(), heads));
  return heads;
}

template <class T>
HeadsArray<T> nan_like(const HeadsArray<T>& heads) {
  return {heads.B(), heads.H(), heads.N(), heads.d(), T(NAN)};
}

}  // namespace flash_steps::test

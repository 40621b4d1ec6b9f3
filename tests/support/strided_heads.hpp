// Batches of heads in any order in memory, with NaN in between.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps::test {

enum class Order { bhnd, bnhd, gaps };
inline constexpr Order kOrders[] = {Order::bhnd, Order::bnhd, Order::gaps};

inline HeadsLayout layout(Order order, const HeadsArray<float>& heads) {
  const Index B = heads.B(), H = heads.H(), N = heads.N(), d = heads.d();
  if (order == Order::bhnd) return bhnd_layout(B, H, N, d);
  if (order == Order::bnhd) return bnhd_layout(B, H, N, d);
  // nothing a multiple of anything, heads outside of batches
  const Index head = N * (d + 3) + 1;
  return {B, H, N, d, head, B * head + 5, d + 3};
}

// Memory for heads in some order, NaN but for what `heads` has. `shift` moves it off its
// alignment.
class StridedHeads {
 public:
  StridedHeads(const HeadsArray<float>& heads, Order order, Index shift = 0)
      : at_(layout(order, heads)),
        shift_(shift),
        memory_(static_cast<std::size_t>(layout_extent(at_) + shift), NAN) {
    for (Index b = 0; b < at_.B; ++b) {
      for (Index h = 0; h < at_.H; ++h) view().head(b, h) = heads.head(b, h);
    }
  }

  HeadsView<float> view() { return {memory_.data() + shift_, at_}; }
  HeadsArray<float> heads() {
    HeadsArray<float> result(at_.B, at_.H, at_.N, at_.d);
    for (Index b = 0; b < at_.B; ++b) {
      for (Index h = 0; h < at_.H; ++h) result.head(b, h) = view().head(b, h);
    }
    return result;
  }
  const std::vector<float>& memory() const { return memory_; }

 private:
  HeadsLayout at_;
  Index shift_;
  std::vector<float> memory_;
};

// What lies between the heads was NaN, and still is: as many elements are no NaN as there are.
inline bool gaps_untouched(const std::vector<float>& memory, const HeadsArray<float>& heads) {
  const auto is_number = [](float x) { return !std::isnan(x); };
  const auto& elements = heads.elements();
  return std::count_if(memory.begin(), memory.end(), is_number) ==
         std::count_if(elements.begin(), elements.end(), is_number);
}

inline HeadsArray<float> nan_like(const HeadsArray<float>& heads) {
  return {heads.B(), heads.H(), heads.N(), heads.d(), NAN};
}

}  // namespace flash_steps::test

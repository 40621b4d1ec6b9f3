// Where element (b, h, n, c) of a batch of heads lies in memory.
//
// All arithmetic is signed 64-bit. A 32-bit product b * stride_b wraps long before memory runs
// out: block 2066 of a cache with 1039680 elements a block begins at element 2147978880 > 2^31.
// No Eigen: nvcc reads this file too.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/tensor/element_count.hpp"

namespace flash_steps {

// Sizes [B, H, N, d] and, in elements, the distances between neighbours along B, H and N.
// The d channels of a row are neighbours in memory (stride 1).
struct HeadsLayout {
  std::int64_t B = 0, H = 0, N = 0, d = 0;
  std::int64_t stride_b = 0, stride_h = 0, stride_n = 0;

  // The position of channel 0 of row n of head (b, h), in elements. Nothing is checked here.
  constexpr std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t n) const {
    return b * stride_b + h * stride_h + n * stride_n;
  }
};

// The contiguous layout whose memory order is [B, H, N, d]: each head is one block of rows.
// Sizes may be 0. Throws std::invalid_argument if one is negative or if B * H * N * d (zeros
// left out) does not fit in 63 bits.
constexpr HeadsLayout bhnd_layout(std::int64_t B, std::int64_t H, std::int64_t N,
                                  std::int64_t d);

// The contiguous layout whose memory order is [B, N, H, d]: a token's heads are neighbours, as
// a projection of the tokens leaves them. The arguments keep the order B, H, N, d. Errors as
// above.
constexpr HeadsLayout bnhd_layout(std::int64_t B, std::int64_t H, std::int64_t N,
                                  std::int64_t d);

// Throws std::invalid_argument if a size is negative, or if an offset of the layout, whatever
// its strides, could leave the signed 64-bit range.
inline void check_layout(const HeadsLayout& layout);

// How many elements memory needs that begins with element (0, 0, 0, 0): one more than the
// largest offset, 0 for an empty layout. Throws std::invalid_argument as check_layout does, or
// for a negative stride.
inline std::int64_t layout_extent(const HeadsLayout& layout);

// --------------------------------------------------------------------------------------------

namespace detail {

inline std::string sizes_text(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d) {
  return "[B, H, N, d] = [" + std::to_string(B) + ", " + std::to_string(H) + ", " +
         std::to_string(N) + ", " + std::to_string(d) + "]";
}

constexpr void check_sizes(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d) {
  if (B < 0 || H < 0 || N < 0 || d < 0) {
    throw std::invalid_argument("sizes must not be negative, found " + sizes_text(B, H, N, d));
  }
}

constexpr void check_count(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d) {
  check_sizes(B, H, N, d);
  if (!element_count(std::array{B, H, N, d})) {
    throw std::invalid_argument("the number of elements of " + sizes_text(B, H, N, d) +
                                " does not fit in 64 bits");
  }
}

// Whether (B-1)|stride_b| + (H-1)|stride_h| + (N-1)|stride_n| + (d-1) fits in 63 bits. Signs
// are ignored: strides of mixed signs stay within that distance on either side.
constexpr bool offsets_fit(const HeadsLayout& layout) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t reach = layout.d > 0 ? static_cast<std::uint64_t>(layout.d) - 1 : 0;
  for (const auto& [size, stride] :
       {std::pair{layout.B, layout.stride_b}, std::pair{layout.H, layout.stride_h},
        std::pair{layout.N, layout.stride_n}}) {
    if (size <= 1) continue;
    const auto steps = static_cast<std::uint64_t>(size) - 1;
    const auto step = static_cast<std::uint64_t>(stride);
    const std::uint64_t distance = stride < 0 ? 0 - step : step;  // |INT64_MIN| fits unsigned
    if (distance > (limit - reach) / steps) return false;
    reach += distance * steps;
  }
  return true;
}

}  // namespace detail

constexpr HeadsLayout bhnd_layout(std::int64_t B, std::int64_t H, std::int64_t N,
                                  std::int64_t d) {
  detail::check_count(B, H, N, d);
  return {B, H, N, d, H * N * d, N * d, d};
}

constexpr HeadsLayout bnhd_layout(std::int64_t B, std::int64_t H, std::int64_t N,
                                  std::int64_t d) {
  detail::check_count(B, H, N, d);
  return {B, H, N, d, N * H * d, d, H * d};
}

inline void check_layout(const HeadsLayout& layout) {
  detail::check_sizes(layout.B, layout.H, layout.N, layout.d);
  if (!detail::offsets_fit(layout)) {
    throw std::invalid_argument("the offsets of " +
                                detail::sizes_text(layout.B, layout.H, layout.N, layout.d) +
                                " with strides [" + std::to_string(layout.stride_b) + ", " +
                                std::to_string(layout.stride_h) + ", " +
                                std::to_string(layout.stride_n) + ", 1] do not fit in 64 bits");
  }
}

inline std::int64_t layout_extent(const HeadsLayout& layout) {
  check_layout(layout);
  if (layout.stride_b < 0 || layout.stride_h < 0 || layout.stride_n < 0) {
    throw std::invalid_argument(
        "strides must not be negative here, found [" + std::to_string(layout.stride_b) + ", " +
        std::to_string(layout.stride_h) + ", " + std::to_string(layout.stride_n) + ", 1]");
  }
  if (layout.B == 0 || layout.H == 0 || layout.N == 0 || layout.d == 0) return 0;
  return layout.offset(layout.B - 1, layout.H - 1, layout.N - 1) + layout.d;
}

}  // namespace flash_steps

// Wrong versions of chapter 07, which its executable shows and its tests pin down.
#pragma once

#include <cstdint>

#include "common/tensor/layout.hpp"

namespace flash_steps::wrong {

// HeadsLayout::offset in the 32-bit products of the notes' listing (docs/errata.md, E35), and
// what the processor makes of them: it keeps the last 32 bits.
constexpr std::int32_t offset_32(const HeadsLayout& at, std::int64_t b, std::int64_t h,
                                 std::int64_t n) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(b * at.stride_b) +
                                   static_cast<std::uint32_t>(h * at.stride_h) +
                                   static_cast<std::uint32_t>(n * at.stride_n));
}

// Neighbouring query heads on different key/value heads. Right only for Hkv = H and Hkv = 1.
constexpr std::int64_t kv_head_interleaved(std::int64_t h, std::int64_t Hkv) { return h % Hkv; }

}  // namespace flash_steps::wrong

// Philox-4x32-10: random bits that are a function of a position, not of what was drawn before.
//
// A block cipher, much simplified: 128 bits of counter go in, 128 bits that look random come
// out, and the key (64 bits) chooses which of many such functions it is. There is no state. So
// any thread can have the bits of any position, in any order and again later, and the CPU and
// the device have the same ones.
//
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
// section 3.3 (figure 2 shows a round). No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>

namespace flash_steps {

struct PhiloxWords {
  std::uint32_t word[4];
};

// The 128 bits at `counter` under `key`, whose low 32 bits are the paper's first key word.
constexpr PhiloxWords philox(PhiloxWords counter, std::uint64_t key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  // the key's words advance from round to round by the golden ratio, and by sqrt(3) - 1
  constexpr std::uint32_t kStep0 = 0x9E3779B9, kStep1 = 0xBB67AE85;
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto& [c0, c1, c2, c3] = counter.word;
    const std::uint64_t product0 = kMultiplier0 * c0, product1 = kMultiplier1 * c2;
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kStep0;
    key1 += kStep1;
  }
  return counter;
}

}  // namespace flash_steps

// common/random: the known answers that come with Random123, the authors' own library
// (tests/kat_vectors, lines "philox4x32 10").
#include <doctest/doctest.h>

#include "common/random/philox.hpp"

using namespace flash_steps;

namespace {

void check_words(PhiloxWords actual, PhiloxWords expected) {
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(actual.word[i] == expected.word[i]);
  }
}

}  // namespace

TEST_CASE("cpu: philox gives the published known answers") {
  check_words(philox({{0, 0, 0, 0}}, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  constexpr std::uint32_t ones = 0xffffffff;
  check_words(philox({{ones, ones, ones, ones}}, 0xffffffffffffffff),
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  check_words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822),
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("cpu: philox can be evaluated by the compiler") {
  constexpr PhiloxWords words = philox({{0, 0, 0, 0}}, 0);
  static_assert(words.word[0] == 0x6627e8d5);
  CHECK(words.word[3] == 0x9b00dbd8);
}

TEST_CASE("cpu: philox changes half of the bits for any bit of counter or key") {
  const PhiloxWords counter{{1, 2, 3, 4}};
  const std::uint64_t key = 5;
  const PhiloxWords before = philox(counter, key);
  for (int bit = 0; bit < 192; ++bit) {
    CAPTURE(bit);
    PhiloxWords changed = counter;
    std::uint64_t changed_key = key;
    if (bit < 128) {
      changed.word[bit / 32] ^= 1u << bit % 32;
    } else {
      changed_key ^= std::uint64_t{1} << (bit - 128);
    }
    const PhiloxWords after = philox(changed, changed_key);
    int differing = 0;
    for (int i = 0; i < 4; ++i) differing += __builtin_popcount(before.word[i] ^ after.word[i]);
    CHECK(differing > 64 - 30);  // 128 fair bits: 64 on average, deviation 5.7
    CHECK(differing < 64 + 30);
  }
}

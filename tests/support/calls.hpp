// What a call of the code under test leaves alone, and what it says when it refuses.
#pragma once

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "common/device/eigen.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/heads.hpp"

namespace flash_steps::test {

// Calls, and checks that the inputs (matrices, vectors, batches of heads) are what they were
// before, to the bit.
template <class Call, class... Inputs>
void check_unchanged(const Call& call, const Inputs&... inputs) {
  const std::tuple<Inputs...> before(inputs...);
  call();
  const auto check = [](const auto& now, const auto& then) { CHECK(same_bits(now, then)); };
  std::apply([&](const Inputs&... then) { (check(inputs, then), ...); }, before);
}

// Checks that arrays on the device, or StridedHeads, hold what was put there, to the bit:
// check_holds(device_Q, Q, device_K, K, ...).
template <class Device, class Host, class... More>
void check_holds(const Device& device, const Host& host, const More&... more) {
  CHECK(same_bits(to_host(device), host));
  if constexpr (sizeof...(more) > 0) check_holds(more...);
}

// The message of the std::invalid_argument that the call throws; "accepted" if it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace flash_steps::test

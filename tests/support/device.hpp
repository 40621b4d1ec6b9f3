// The device of this build: what differs between the simulator and a GPU, and what its limits
// are.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/device/array.hpp"
#include "tests/support/skip.hpp"

namespace flash_steps::test {

inline bool simulated() { return device_kind() == std::string("sim"); }

// The kind that this build has not.
inline std::string other_device() { return simulated() ? "cuda" : "sim"; }

// "cpu", and the device if it can run here: for an executable's --device.
inline std::vector<std::string> usable_devices() {
  std::vector<std::string> devices{"cpu"};
  if (device_available()) devices.push_back(device_kind());
  return devices;
}

// True if something was counted. A GPU does not count, and nothing else may leave it out.
template <class Counts>
bool counted(const std::optional<Counts>& counts) {
  if (!counts) CHECK(device_kind() == std::string("cuda"));
  return counts.has_value();
}

// Calls with the threads of each block in other orders than that of their numbers: in reverse,
// and in as many random ones as wanted. A GPU has its own order, whatever is asked for.
template <class Call>
void in_other_thread_orders(const Call& call, std::uint64_t random_orders = 2) {
  set_thread_order(ThreadOrder::reverse);
  call();
  for (std::uint64_t seed = 1; seed <= random_orders; ++seed) {
    set_thread_order(ThreadOrder::random, seed);
    call();
  }
  set_thread_order(ThreadOrder::forward);
}

// What a launcher says to tiles that are too large: "TILES need BYTES bytes of shared memory,
// but a block of this device has ...".
inline std::string does_not_fit(const std::string& tiles, std::int64_t bytes) {
  return tiles + " need " + std::to_string(bytes) +
         " bytes of shared memory, but a block of this device has " +
         std::to_string(device_limits().shared_bytes_per_block);
}

}  // namespace flash_steps::test

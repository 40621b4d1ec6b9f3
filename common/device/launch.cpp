#include "common/device/launch.hpp"

#include <string>

#include "common/device/array.hpp"

namespace flash_steps {
namespace {

void check(const char* caller, const char* what, std::int64_t value, std::int64_t limit) {
  if (value >= 1 && value <= limit) return;
  throw std::invalid_argument(std::string(caller) + ": " + what + " is " +
                              std::to_string(value) + ", but must be from 1 to " +
                              std::to_string(limit));
}

}  // namespace

void require_device(const std::string& kind) {
  if (kind == "cpu") return;
  const bool known = kind == "sim" || kind == "cuda";
  require(known, "the device must be cpu, sim or cuda, found '" + kind + "'");
  require(kind == device_kind(), "this build runs kernels on '" + std::string(device_kind()) +
                                     "', not '" + kind +
                                     "': configure with -DFLASH_STEPS_DEVICE=" + kind);
  require(device_available(), "there is no GPU here for the device 'cuda'");
}

void use_device(const std::string& kind, const std::optional<std::string>& thread_order,
                std::uint64_t seed) {
  require_device(kind);
  if (!thread_order) return;
  require(kind == "sim",
          "the thread order is the simulator's: it needs the device sim, not '" + kind + "'");
  const bool reverse = *thread_order == "reverse", random = *thread_order == "random";
  require(reverse || random || *thread_order == "forward",
          "the thread order must be forward, reverse or random, found '" + *thread_order + "'");
  set_thread_order(reverse  ? ThreadOrder::reverse
                   : random ? ThreadOrder::random
                            : ThreadOrder::forward,
                   seed);
}

void check_launch(const Launch& config) {
  const DeviceLimits limits = device_limits();
  check(config.caller, "grid x", config.grid.x, limits.grid_x);
  check(config.caller, "grid y", config.grid.y, limits.grid_y);
  check(config.caller, "grid z", config.grid.z, limits.grid_z);
  check(config.caller, "block x", config.block.x, limits.threads_per_block);
  check(config.caller, "block y", config.block.y, limits.threads_per_block);
  check(config.caller, "block z", config.block.z, 64);  // CUDA's, on every device
  check(config.caller, "the number of threads in a block",
        config.block.x * config.block.y * config.block.z, limits.threads_per_block);
  if (config.shared_bytes < 0 || config.shared_bytes > limits.shared_bytes_per_block) {
    throw std::invalid_argument(std::string(config.caller) + ": a block needs " +
                                std::to_string(config.shared_bytes) +
                                " bytes of shared memory, but this device has " +
                                std::to_string(limits.shared_bytes_per_block));
  }
}

}  // namespace flash_steps

// The device is the simulator: arrays in ordinary memory, an H100's limits, and the settings
// and counts that array.hpp offers beside them.
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "common/device/array.hpp"
#include "common/simulator/simulator.hpp"

namespace flash_steps {

const char* device_kind() { return "sim"; }
bool device_available() { return true; }
std::string device_name() { return "simulator"; }
void synchronize_device() {}

DeviceLimits device_limits() {
  return {.threads_per_block = 1024,
          .shared_bytes_per_block = 232448,
          .grid_x = 2147483647,
          .grid_y = 65535,
          .grid_z = 65535,
          .multiprocessors = 132};
}

// ---- the order of threads

namespace {

using simulator::OrderSetting;

OrderSetting order_from_environment() {
  const char* text = std::getenv("FLASH_STEPS_THREAD_ORDER");
  if (!text || !*text) return {};
  const std::string value = text, with_seed = "random:";
  if (value == "forward") return {ThreadOrder::forward, 0};
  if (value == "reverse") return {ThreadOrder::reverse, 0};
  if (value == "random") return {ThreadOrder::random, 0};
  if (value.rfind(with_seed, 0) == 0) {
    OrderSetting setting{ThreadOrder::random, 0};
    const char *first = value.data() + with_seed.size(), *last = value.data() + value.size();
    const auto [end, error] = std::from_chars(first, last, setting.seed);
    if (error == std::errc() && end == last) return setting;
  }
  throw std::invalid_argument("FLASH_STEPS_THREAD_ORDER is '" + value +
                              "', but must be forward, reverse, random or random:SEED");
}

OrderSetting& setting() {
  static OrderSetting value = order_from_environment();
  return value;
}

}  // namespace

const OrderSetting& simulator::order_setting() { return setting(); }
void set_thread_order(ThreadOrder order, std::uint64_t seed) { setting() = {order, seed}; }

// ---- traffic

namespace {
std::atomic<std::int64_t> total_read_bytes{0}, total_written_bytes{0}, total_atomic_bytes{0};
}

void simulator::add_traffic(const Traffic& traffic) {
  total_read_bytes += traffic.read_bytes;
  total_written_bytes += traffic.written_bytes;
  total_atomic_bytes += traffic.atomic_bytes;
}

std::optional<Traffic> device_traffic() {
  return Traffic{total_read_bytes, total_written_bytes, total_atomic_bytes};
}

void reset_device_traffic() { total_read_bytes = total_written_bytes = total_atomic_bytes = 0; }

// ---- memory

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // cudaMalloc's alignment
  if (!data_) {
    throw DeviceError("no memory for a device array of " + std::to_string(bytes) + " bytes");
  }
  std::memset(data_, 0xFF, bytes);
}

DeviceMemory::~DeviceMemory() { std::free(data_); }

void DeviceMemory::copy_from(const DeviceMemory& other) {
  if (bytes_ > 0) std::memcpy(data_, other.data_, bytes_);
}

void DeviceMemory::upload(const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(data_, host, bytes);
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(host, data_, bytes);
}

}  // namespace flash_steps

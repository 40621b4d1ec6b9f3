// Arrays that live where the kernels run, and what is known about that place.
//
// This half of the door to a GPU is for everyone: it shows no CUDA header, so tests and
// executables compile it with the host compiler. The other half, kernel.hpp, is for .cu files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/element_count.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

// A failure of the device itself: a CUDA call, or a mistake of a kernel that the simulator
// found.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a launch may ask for.
struct DeviceLimits {
  std::int64_t threads_per_block;
  std::int64_t shared_bytes_per_block;  // dynamic shared memory, after opting in
  std::int64_t grid_x, grid_y, grid_z;  // blocks
  std::int64_t multiprocessors;
};

const char* device_kind();     // "cuda" or "sim": which one this build has
bool device_available();       // false: a cuda build on a machine without a GPU
std::string device_name();     // for people, e.g. "NVIDIA H200" or "simulator"
DeviceLimits device_limits();  // of the current device; throws DeviceError without one
void synchronize_device();     // waits for all launches; throws DeviceError for their faults

// Throws std::invalid_argument unless kind ("cpu", "sim" or "cuda") can run here: the one that
// this build has, and for "cuda" a GPU in this machine. "cpu" always can.
void require_device(const std::string& kind);

// The order in which the simulator runs the threads of a block between two barriers; a kernel
// whose result depends on it has a race. A seed stands for the same orders on every machine
// with the same standard library. For the whole process, not while a kernel runs; a GPU has its
// own order and ignores it. The start value comes from the environment:
// FLASH_STEPS_THREAD_ORDER=forward|reverse|random|random:SEED.
enum class ThreadOrder { forward, reverse, random };
void set_thread_order(ThreadOrder order, std::uint64_t seed = 0);

// For an executable's --device, --thread-order (a name of ThreadOrder) and --seed:
// require_device, and set_thread_order if an order is given. Throws std::invalid_argument for
// another name.
void use_device(const std::string& kind, const std::optional<std::string>& thread_order,
                std::uint64_t seed);

// Bytes that kernels moved between registers and global memory, as the kernels' loads and
// stores name them (no caches). Counted by the simulator; a GPU does not count, and answers
// nothing. Elements that atomics update travel there and back; they are counted apart, once
// each.
struct Traffic {
  std::int64_t read_bytes = 0, written_bytes = 0, atomic_bytes = 0;
};
std::optional<Traffic> device_traffic();  // since the last reset
void reset_device_traffic();

// Raw memory on the device. A new block is all 0xFF bytes, which is NaN in every floating type,
// so that reading what nobody wrote shows.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);  // throws DeviceError if it cannot be had
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory other) noexcept { return swap(other), *this; }
  ~DeviceMemory();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* host, std::size_t bytes);    // host -> device
  void download(void* host, std::size_t bytes) const;  // device -> host, after all launches
  void copy_from(const DeviceMemory& other);           // device -> device, of the same size

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A one-dimensional array on the device. It owns its memory; moving is cheap, copying is not
// offered. Element type: anything trivially copyable. A new array holds NaN (0xFF bytes).
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::int64_t size) : size_(size), memory_(bytes_of(size)) {}
  DeviceArray(const T* host, std::int64_t size) : DeviceArray(size) { upload(host); }
  explicit DeviceArray(const std::vector<T>& host)
      : DeviceArray(host.data(), static_cast<std::int64_t>(host.size())) {}

  std::int64_t size() const { return size_; }
  // The address in the device's memory: on a GPU the host must not follow it.
  T* data() { return static_cast<T*>(memory_.data()); }
  const T* data() const { return static_cast<const T*>(memory_.data()); }

  // Takes over the elements of an array of the same size, asynchronously on a GPU, at the speed
  // of the device's memory. Throws std::invalid_argument if the sizes differ.
  void copy_from(const DeviceArray& other) {
    require(size_ == other.size_, "a device array can only be copied to one of its size");
    memory_.copy_from(other.memory_);
  }
  void upload(const T* host) { memory_.upload(host, memory_.bytes()); }  // all size() elements
  void download(T* host) const { memory_.download(host, memory_.bytes()); }
  std::vector<T> download() const {
    std::vector<T> host(static_cast<std::size_t>(size_));
    download(host.data());
    return host;
  }

 private:
  static std::size_t bytes_of(std::int64_t size) {
    constexpr std::int64_t most = PTRDIFF_MAX / static_cast<std::int64_t>(sizeof(T));
    if (size < 0 || size > most) {
      require(false, "a device array cannot have " + std::to_string(size) + " elements");
    }
    return static_cast<std::size_t>(size) * sizeof(T);
  }
  std::int64_t size_ = 0;
  DeviceMemory memory_;
};

// A row-major matrix on the device.
template <class T>
class DeviceMatrix : public DeviceArray<T> {
 public:
  DeviceMatrix() = default;
  DeviceMatrix(std::int64_t rows, std::int64_t cols)
      : DeviceArray<T>(count(rows, cols)), rows_(rows), cols_(cols) {}
  DeviceMatrix(const T* host, std::int64_t rows, std::int64_t cols)
      : DeviceArray<T>(host, count(rows, cols)), rows_(rows), cols_(cols) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }

 private:
  static std::int64_t count(std::int64_t rows, std::int64_t cols) {
    const auto product = element_count(std::array{rows, cols});
    if (!product) {
      require(false, "a device matrix cannot have the sizes [" + std::to_string(rows) + ", " +
                         std::to_string(cols) + "]");
    }
    return *product;
  }
  std::int64_t rows_ = 0, cols_ = 0;
};

}  // namespace flash_steps

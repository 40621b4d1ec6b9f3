// kernel.hpp without nvcc: CUDA's vocabulary as far as the chapters use it, on top of the
// simulator. Memory is reached through proxies that check bounds, count bytes and find races.
// (So `auto x = O[i]` copies a proxy: name the type.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/device/array.hpp"
#include "common/device/launch.hpp"
#include "common/simulator/simulator.hpp"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// One copy for each host thread, which is one for each block: a block stays on its host thread.
#define __shared__ static thread_local

namespace flash_steps {

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- memory
// --------------------------------------------------------------------------------------

namespace simulator {

// What `p[i]` yields where it may be written: loads when read, stores when assigned.
template <class Pointer, class T>
class Element {
 public:
  Element(const Pointer& memory, const Index& index) : memory_(memory), index_(index) {}
  Element(const Element&) = default;
  operator T() const { return memory_.load(index_); }
  T operator=(T value) const { return memory_.store(index_, value), value; }
  T operator=(const Element& other) const { return *this = static_cast<T>(other); }
  T operator+=(T value) const { return *this = static_cast<T>(*this) + value; }
  T operator*=(T value) const { return *this = static_cast<T>(*this) * value; }

 private:
  Pointer memory_;
  Index index_;
};

}  // namespace simulator

// A pointer into global memory that knows where its array ends. Loads and stores are counted.
template <class T>
class global {
 public:
  using Value = std::remove_const_t<T>;
  global(T* first, std::int64_t size) : first_(first), size_(size) {}
  template <class U>
  requires std::is_same_v<const U, T> global(const global<U>& other)
      : global(other.first_, other.size_, other.offset_) {}

  auto operator[](const simulator::Index& index) const {
    if constexpr (std::is_const_v<T>) {
      return load(index);
    } else {
      return simulator::Element<global, Value>(*this, index);
    }
  }
  Value operator*() const { return load(0); }
  global operator+(std::int64_t n) const { return global(first_, size_, offset_ + n); }

  Value load(const simulator::Index& index) const {
    simulator::current.traffic.read_bytes += static_cast<std::int64_t>(sizeof(T));
    return first_[checked(index)];
  }
  void store(const simulator::Index& index, Value value) const {
    simulator::current.traffic.written_bytes += static_cast<std::int64_t>(sizeof(T));
    first_[checked(index)] = value;
  }

  // The same memory as larger elements; what does not fill one at the end is out of its bounds.
  template <class To>
  global<To> as(const simulator::Source& source) const {
    constexpr auto ratio = static_cast<std::int64_t>(sizeof(To) / sizeof(T));
    simulator::check_alignment(first_ + offset_, alignof(To), source);
    return global<To>(reinterpret_cast<To*>(first_ + offset_), (size_ - offset_) / ratio);
  }

 private:
  template <class>
  friend class global;
  global(T* first, std::int64_t size, std::int64_t offset)
      : first_(first), size_(size), offset_(offset) {}
  std::int64_t checked(const simulator::Index& index) const {
    const std::int64_t i = offset_ + index.value;
    if (i < 0 || i >= size_) simulator::fail_bounds(index, i, size_, "a global array");
    return i;
  }
  T* first_;
  std::int64_t size_, offset_ = 0;
};

// A pointer into shared memory: one piece of it, with the history of each word. T has a
// multiple of 4 bytes, since the history is kept by word.
template <class T>
class shared {
  static_assert(sizeof(T) % 4 == 0,
                "the simulator keeps the history of shared memory by 4-byte word");
  static constexpr std::int64_t kWords = sizeof(T) / 4;

 public:
  shared(T* first, simulator::WordHistory* history, std::int64_t size)
      : first_(first), history_(history), size_(size) {}
  auto operator[](const simulator::Index& index) const {
    return simulator::Element<shared, T>(*this, index);
  }
  shared operator+(std::int64_t n) const {
    shared moved = *this;
    moved.offset_ += n;
    return moved;
  }

  T load(const simulator::Index& index) const {
    const std::int64_t i = checked(index);
    simulator::record_read(history_ + i * kWords, kWords, index);
    return first_[i];
  }
  void store(const simulator::Index& index, T value) const {
    const std::int64_t i = checked(index);
    simulator::record_write(history_ + i * kWords, kWords, index);
    first_[i] = value;
  }

 private:
  std::int64_t checked(const simulator::Index& index) const {
    const std::int64_t i = offset_ + index.value;
    if (i < 0 || i >= size_)
      simulator::fail_bounds(index, i, size_, "a piece of shared memory");
    return i;
  }
  T* first_;
  simulator::WordHistory* history_;
  std::int64_t size_, offset_ = 0;
};

// See cuda.cuh. Here a piece ends where the next begins: running over into it is out of bounds.
class dynamic_shared {
 public:
  template <class T>
  shared<T> take(std::int64_t count, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
    const simulator::SharedBytes all = simulator::dynamic_shared_bytes();
    const std::int64_t begin = used_;
    const std::int64_t end = begin + count * static_cast<std::int64_t>(sizeof(T));
    used_ = (end + 15) / 16 * 16;
    if (count < 0 || end > all.size) {
      simulator::fail({file, line}, "takes shared memory up to byte " + std::to_string(end) +
                                        ", but the launch gave " + std::to_string(all.size));
    }
    return {reinterpret_cast<T*>(all.bytes + begin), all.history + begin / 4, count};
  }

 private:
  std::int64_t used_ = 0;
};

// A __shared__ array of N elements. As the storage of one host thread outlives its blocks, the
// first access in a new block poisons it.
template <class T, int N>
class shared_array {
 public:
  auto operator[](const simulator::Index& index) { return piece()[index]; }

 private:
  shared<T> piece() {
    if (block_serial_ != simulator::current.block_serial) {
      std::memset(values_, 0xFF, sizeof(values_));
      block_serial_ = simulator::current.block_serial;
    }
    return {values_, history_, N};
  }
  T values_[N];
  simulator::WordHistory history_[sizeof(T) * N / 4];
  std::uint64_t block_serial_ = 0;
};

template <class To, class From>
global<To> as(const global<From>& p, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return p.template as<To>({file, line});
}

// ---- threads meet
// ----------------------------------------------------------------------------------

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simulator::barrier({file, line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = simulator::shuffle_xor(mask, bits, lane_mask, {file, line});
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// ---- launch
// ----------------------------------------------------------------------------------------

template <class T>
global<T> kernel_argument(DeviceArray<T>& array) {
  return {array.data(), array.size()};
}
template <class T>
global<const T> kernel_argument(const DeviceArray<T>& array) {
  return {array.data(), array.size()};
}
template <class T>
requires std::is_arithmetic_v<T> T kernel_argument(T value) { return value; }

// See cuda.cuh. Here the kernel has run when launch returns; its mistakes throw DeviceError.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  simulator::run_grid(config,
                      [&] { kernel(static_cast<Parameters>(kernel_argument(arguments))...); });
}

}  // namespace flash_steps

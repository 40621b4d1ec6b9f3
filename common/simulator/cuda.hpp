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

namespace simulator {

// What `p[i]` yields where it may be written: loads when read, stores when assigned.
template <class Pointer, class T>
class Element {
 public:
  using Value = T;
  Element(const Pointer& memory, Index index) : memory_(memory), index_(index) {}
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

  auto operator[](simulator::Index index) const {
    if constexpr (std::is_const_v<T>) {
      return load(index);
    } else {
      return simulator::Element<global, Value>(*this, index);
    }
  }
  global operator+(std::int64_t n) const { return global(first_, size_, offset_ + n); }

  Value load(simulator::Index index) const {
    simulator::current.traffic.read_bytes += static_cast<std::int64_t>(sizeof(T));
    return first_[simulator::checked(index, offset_, size_, kName)];
  }
  void store(simulator::Index index, Value value) const {
    simulator::current.traffic.written_bytes += static_cast<std::int64_t>(sizeof(T));
    first_[simulator::checked(index, offset_, size_, kName)] = value;
  }

  // What an atomic does: replaces the element by update(element), undivided, and returns the
  // old one. One that changes nothing again and again is a thread that polls: others get their
  // turn.
  template <class Update>
  Value atomic(simulator::Source source, const Update& update) const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    simulator::current.traffic.atomic_bytes += static_cast<std::int64_t>(sizeof(T));
    T* element =
        first_ + simulator::checked({0, source.file, source.line}, offset_, size_, kName);
    Value before, after;
    __atomic_load(element, &before, __ATOMIC_ACQUIRE);
    do {
      after = update(before);
    } while (!__atomic_compare_exchange(element, &before, &after, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
    simulator::polled(element, std::memcmp(&before, &after, sizeof(T)) == 0, source);
    return before;
  }

  // The same memory as larger elements; what does not fill one at the end is out of its bounds.
  template <class To>
  global<To> as(simulator::Source source) const {
    static_assert(sizeof(To) % sizeof(T) == 0);
    constexpr auto ratio = static_cast<std::int64_t>(sizeof(To) / sizeof(T));
    if (offset_ < 0 || offset_ > size_) simulator::fail_bounds(source, offset_, size_, kName);
    simulator::check_alignment(first_ + offset_, alignof(To), source);
    return global<To>(reinterpret_cast<To*>(first_ + offset_), (size_ - offset_) / ratio);
  }

 private:
  template <class>
  friend class global;
  global(T* first, std::int64_t size, std::int64_t offset)
      : first_(first), size_(size), offset_(offset) {}
  static constexpr char kName[] = "a global array";
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
  constexpr shared() = default;
  explicit shared(simulator::SharedBytes piece)
      : first_(reinterpret_cast<T*>(piece.bytes)),
        tags_(piece.tags),
        size_(piece.size / static_cast<std::int64_t>(sizeof(T))) {}

  auto operator[](simulator::Index index) const {
    return simulator::Element<shared, T>(*this, index);
  }
  shared operator+(std::int64_t n) const {
    shared moved = *this;
    moved.offset_ += n;
    return moved;
  }

  T load(simulator::Index index) const {
    const std::int64_t i = checked(index);
    for (std::int64_t w = 0; w < kWords; ++w) {
      simulator::record_read(tags_ + i * kWords + w, index.source, i);
    }
    return first_[i];
  }
  void store(simulator::Index index, T value) const {
    const std::int64_t i = checked(index);
    for (std::int64_t w = 0; w < kWords; ++w) {
      simulator::record_write(tags_ + i * kWords + w, index.source, i);
    }
    first_[i] = value;
  }

  // See global::as.
  template <class To>
  shared<To> as(simulator::Source source) const {
    static_assert(sizeof(To) % sizeof(T) == 0);
    if (offset_ < 0 || offset_ > size_) simulator::fail_bounds(source, offset_, size_, kName);
    simulator::check_alignment(first_ + offset_, alignof(To), source);
    return shared<To>({reinterpret_cast<std::byte*>(first_ + offset_), tags_ + offset_ * kWords,
                       (size_ - offset_) * static_cast<std::int64_t>(sizeof(T))});
  }

 private:
  static constexpr char kName[] = "a piece of shared memory";
  std::int64_t checked(simulator::Index index) const {
    return simulator::checked(index, offset_, size_, kName);
  }
  T* first_ = nullptr;
  simulator::WordTags* tags_ = nullptr;
  std::int64_t size_ = 0, offset_ = 0;
};

// See cuda.cuh. Here a piece ends where the next begins: running over into it is out of bounds.
class dynamic_shared {
 public:
  template <class T>
  shared<T> take(std::int64_t count, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
    const simulator::SharedBytes all = simulator::dynamic_shared_bytes();
    const std::int64_t begin = used_, bytes = count * static_cast<std::int64_t>(sizeof(T));
    used_ = (begin + bytes + 15) / 16 * 16;
    if (bytes < 0 || begin + bytes > all.size) {
      simulator::fail({file, line}, "takes shared memory up to byte " +
                                        std::to_string(begin + bytes) +
                                        ", but the launch gave " + std::to_string(all.size));
    }
    return shared<T>({all.bytes + begin, all.tags + begin / 4, bytes});
  }

 private:
  std::int64_t used_ = 0;
};

// A __shared__ array of N elements. As such an object outlives its block, its memory is taken,
// fresh, by the first access in each block.
template <class T, int N>
class shared_array {
 public:
  auto operator[](simulator::Index index) {
    if (block_serial_ != simulator::current.block_serial) {
      piece_ =
          shared<T>(simulator::take_static_shared(std::int64_t{sizeof(T)} * N, index.source));
      block_serial_ = simulator::current.block_serial;
    }
    return piece_[index];
  }

 private:
  shared<T> piece_;
  std::uint64_t block_serial_ = 0;
};

template <class To, class From>
global<To> as(const global<From>& p, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return p.template as<To>({file, line});
}

template <class To, class From>
shared<To> as(const shared<From>& p, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return p.template as<To>({file, line});
}

// ---- atomics, in global memory: atomicAdd(counts + i, 1u)

template <class T>
T atomicAdd(const global<T>& address, std::type_identity_t<T> value,
            const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return address.atomic({file, line}, [&](T old) { return old + value; });
}
template <class T>
T atomicExch(const global<T>& address, std::type_identity_t<T> value,
             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return address.atomic({file, line}, [&](T) { return value; });
}
template <class T>
T atomicCAS(const global<T>& address, std::type_identity_t<T> expected,
            std::type_identity_t<T> value, const char* file = __builtin_FILE(),
            int line = __builtin_LINE()) {
  return address.atomic({file, line}, [&](T old) { return old == expected ? value : old; });
}

// What this thread wrote before is seen by others before what it writes after.
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- arithmetic

// a * b, rounded: never fused with the addition that follows.
inline float __fmul_rn(float a, float b) { return a * b; }

// ---- threads meet

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

template <class T>
global<T> kernel_argument(DeviceArray<T>& array) {
  return {array.data(), array.size()};
}
template <class T>
global<const T> kernel_argument(const DeviceArray<T>& array) {
  return {array.data(), array.size()};
}
template <class T>
requires std::is_trivially_copyable_v<T> T kernel_argument(T value) { return value; }

// See cuda.cuh. Here the kernel has run when launch returns; its mistakes throw DeviceError.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  simulator::run_grid(config, [&] { kernel(Parameters{kernel_argument(arguments)}...); });
}

}  // namespace flash_steps

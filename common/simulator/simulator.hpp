// CUDA's execution model on the CPU: a grid of blocks, each a set of threads that run as fibers
// and meet at barriers. Kernels do not include this; they see cuda.hpp, which is built on it.
//
// A block runs on one host thread, its threads one after another: each until its next barrier
// or shuffle. Blocks are handed to host threads in index order.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/device/array.hpp"
#include "common/device/launch.hpp"

namespace flash_steps {

// CUDA's own names, set before a thread runs on.
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline constinit thread_local dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim, gridDim;

namespace simulator {

// A place in a kernel's source. An index into memory carries one along, so that a report can
// name the line; __builtin_LINE() as a default argument is the line of the call, and needs no
// macro.
struct Source {
  const char* file = "";
  int line = 0;
};

struct Index {
  std::int64_t value;
  Source source;
  template <class I>  // an integer, or an element of memory that holds one
  requires std::integral<I> || std::integral<typename I::Value> Index(
      const I& value, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : value(static_cast<std::int64_t>(value)), source{file, line} {}
};

// Who touched a 4-byte word of shared memory since the last barrier. A tag is an epoch and a
// thread; the epoch grows at every barrier, so two accesses with equal epochs and unequal
// threads have no barrier between them. Two readers are enough to remember: if any reader
// differs from a writer, one of two distinct ones does.
using Tag = std::uint32_t;
inline constexpr Tag kSeveral = 1u << 10;    // in place of a thread: two readers or more
inline constexpr Tag kEpoch = 2 * kSeveral;  // from one epoch to the next
struct WordTags {
  Tag write = 0, read = 0;
};

// What runs right now on this host thread: read by every access to memory.
struct Current {
  std::uint32_t thread = 0;        // within the block, x fastest
  Tag tag = 0;                     // of an access now: this epoch, this thread
  Tag several = kSeveral;          // this epoch, several threads
  std::uint64_t block_serial = 0;  // grows at every block's start
  Traffic traffic;                 // of the blocks of this launch that ran on this host thread
  const void* polled = nullptr;    // by the last atomic, if it changed nothing
  std::int64_t polls = 0;          // atomics in a row that changed nothing there
  const std::atomic<bool>* launch_failed = nullptr;  // some block of this launch did
};
inline constinit thread_local Current current{};

// Throw DeviceError out of the kernel: "FILE:LINE: what (block ..)".
[[noreturn]] void fail(Source source, const std::string& what);
[[noreturn]] void fail_bounds(Source source, std::int64_t index, std::int64_t size,
                              const char* memory);
void check_alignment(const void* address, std::size_t alignment, Source source);

// index.value + offset, after a check that it lies in [0, size).
inline std::int64_t checked(Index index, std::int64_t offset, std::int64_t size,
                            const char* memory) {
  const std::int64_t i = offset + index.value;
  const bool inside = static_cast<std::uint64_t>(i) < static_cast<std::uint64_t>(size);
  if (!inside) [[unlikely]]
    fail_bounds(index.source, i, size, memory);  // or negative
  return i;
}

// Every access to a word of shared memory goes through one of these; DeviceError if it makes a
// race with an access on record. They return at once if this thread's access, or that of
// several readers, is on record: had another one clashed with it, that would have been
// reported. `index` is for the message.
void record_new_read(WordTags* word, Source source, std::int64_t index);
void record_new_write(WordTags* word, Source source, std::int64_t index);
inline void record_read(WordTags* word, Source source, std::int64_t index) {
  if (word->read == current.tag || word->read == current.several) [[likely]]
    return;
  record_new_read(word, source, index);
}
inline void record_write(WordTags* word, Source source, std::int64_t index) {
  if (word->write == current.tag) return;
  record_new_write(word, source, index);
}

// Shared memory of the block that runs now, and its history, a word each.
struct SharedBytes {
  std::byte* bytes;
  WordTags* tags;
  std::int64_t size;  // bytes
};
SharedBytes dynamic_shared_bytes();
SharedBytes take_static_shared(std::int64_t bytes, Source source);  // new, all 0xFF

void barrier(Source source);  // __syncthreads()
// Hands `value` in and receives the value of lane (own lane xor lane_mask); all bits set, a
// NaN, if that lane is not in the exchange. Lanes named in `mask` that have not left the kernel
// are awaited.
std::uint64_t shuffle_xor(std::uint32_t mask, std::uint64_t value, int lane_mask,
                          Source source);

// After every atomic. One that changed nothing where the last one changed nothing is taken for
// polling: another host thread may run, and the wait ends if the launch has failed, or with a
// DeviceError if it never ends.
void polled(const void* address, bool unchanged, Source source);

// Runs `thread_body` once for every thread of the grid. Rethrows the first failure, that of the
// block with the lowest index.
void run_grid(const Launch& config, const std::function<void()>& thread_body);

// Kept by the device (common/device/sim_backend.cpp).
struct OrderSetting {
  ThreadOrder order = ThreadOrder::forward;
  std::uint64_t seed = 0;
};
const OrderSetting& order_setting();
void add_traffic(const Traffic& traffic);  // from any host thread

}  // namespace simulator
}  // namespace flash_steps

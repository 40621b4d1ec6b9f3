// CUDA's execution model on the CPU: a grid of blocks, each a set of threads that run as fibers
// and meet at barriers. Kernels do not include this; they see cuda.hpp, which is built on it.
//
// A block runs on one host thread, its threads one after another: each until its next barrier
// or shuffle. Blocks are handed to host threads in index order.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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
  bool operator==(const Source&) const = default;
};

struct Index {
  std::int64_t value;
  Source source;
  template <std::integral I>
  Index(I value, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : value(static_cast<std::int64_t>(value)), source{file, line} {}
};

// The access record of one 4-byte word of shared memory. Two accesses with the same epoch have
// no barrier between them. Two readers are enough to remember: if any reader differs from a
// writer, one of two distinct ones does.
struct WordAccess {
  Source source;
  std::uint32_t thread = 0;
  std::uint64_t epoch = 0;
};
struct WordHistory {
  WordAccess write, read, other_read;
};

// What runs right now on this host thread: read by every access to memory.
struct Current {
  std::uint32_t thread = 0;        // within the block, x fastest
  std::uint64_t epoch = 0;         // grows at every barrier and at every block's start
  std::uint64_t block_serial = 0;  // grows at every block's start
  Traffic traffic;                 // of the blocks of this launch that ran on this host thread
};
inline constinit thread_local Current current{};

// Throws DeviceError out of the kernel: "FILE:LINE: what (block .., thread ..)".
[[noreturn]] void fail(const Source& source, const std::string& what);
[[noreturn]] void fail_bounds(const Index& index, std::int64_t element, std::int64_t size,
                              const char* memory);
void check_alignment(const void* address, std::size_t alignment, const Source& source);

// Records an access to `words` words from history[0] on; throws DeviceError if another thread's
// access with no barrier between makes a race.
void record_read(WordHistory* history, std::int64_t words, const Index& index);
void record_write(WordHistory* history, std::int64_t words, const Index& index);

// The dynamic shared memory of the block that runs now, and its history, a word each.
struct SharedBytes {
  std::byte* bytes;
  WordHistory* history;
  std::int64_t size;  // bytes
};
SharedBytes dynamic_shared_bytes();

void barrier(const Source& source);  // __syncthreads()
// Hands `value` in and receives the value of lane (own lane xor lane_mask); all bits set, a
// NaN, if that lane is not in the exchange. Lanes named in `mask` that have not left the kernel
// are awaited.
std::uint64_t shuffle_xor(std::uint32_t mask, std::uint64_t value, int lane_mask,
                          const Source& source);

// Runs `thread_body` once for every thread of the grid. Rethrows the first failure, that of the
// block with the lowest index.
void run_grid(const Launch& config, const std::function<void()>& thread_body);

}  // namespace simulator
}  // namespace flash_steps

#include "common/simulator/simulator.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <random>
#include <string>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "common/simulator/fiber.hpp"

namespace flash_steps {
namespace simulator {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxHostThreads =
    8;  // each keeps up to 1024 stacks; more would exceed a process's mappings

std::string name(const Source& source) {
  const std::string path = source.file;
  return path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(source.line);
}

std::string thread_name(std::uint32_t thread) {
  std::string text = "thread " + std::to_string(thread % blockDim.x);
  if (blockDim.y * blockDim.z > 1) {
    text += "," + std::to_string(thread / blockDim.x % blockDim.y) + "," +
            std::to_string(thread / blockDim.x / blockDim.y);
  }
  return text;
}

std::string block_name() {
  std::string text = "block " + std::to_string(blockIdx.x);
  if (gridDim.y * gridDim.z > 1) {
    text += "," + std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z);
  }
  return text;
}

// ---- settings
// ----------------------------------------------------------------------------------------

struct OrderSetting {
  ThreadOrder order = ThreadOrder::forward;
  std::uint64_t seed = 0;
};

OrderSetting order_from_environment() {
  const char* text = std::getenv("FLASH_STEPS_THREAD_ORDER");
  if (!text || !*text) return {};
  const std::string value = text;
  if (value == "forward") return {ThreadOrder::forward, 0};
  if (value == "reverse") return {ThreadOrder::reverse, 0};
  if (value == "random") return {ThreadOrder::random, 0};
  if (value.rfind("random:", 0) == 0 && value.size() > 7 &&
      value.find_first_not_of("0123456789", 7) == std::string::npos) {
    return {ThreadOrder::random, std::strtoull(value.c_str() + 7, nullptr, 10)};
  }
  throw std::invalid_argument("FLASH_STEPS_THREAD_ORDER is '" + value +
                              "'; it must be forward, reverse, random or random:SEED");
}

OrderSetting& order_setting() {
  static OrderSetting setting = order_from_environment();
  return setting;
}

// ---- one block
// -----------------------------------------------------------------------------------------

enum class State { ready, at_barrier, at_shuffle, left };

// One CUDA thread of the block that runs now.
struct Thread {
  Fiber fiber;
  State state = State::left;
  Source waits_at;  // where it waits; of a thread that left, where it last waited
  std::uint32_t shuffle_mask = 0;
  std::uint64_t shuffle_value = 0;
  int shuffle_lane_mask = 0;
};

struct Cancelled {};  // thrown in the threads of a block that failed, to unwind them

// Runs blocks one after another on one host thread, and keeps its fibers and its shared memory
// for the next launch.
class BlockRunner {
 public:
  void run_block(const Launch& config, const std::function<void()>& thread_body,
                 std::uint64_t block);
  void wait(State state, const Source& source);
  Thread& running() { return threads_[simulator::current.thread]; }
  SharedBytes shared_bytes() {
    return {shared_.data(), history_.data(), static_cast<std::int64_t>(shared_size_)};
  }

 private:
  void resume(std::uint32_t thread);
  void run_until_all_wait();
  bool all_left() const;
  bool complete_shuffle(std::uint32_t thread);
  void release_barrier();
  [[noreturn]] void fail_divergent(std::uint32_t waiting, std::uint32_t other);
  void cancel();
  void new_order();

  std::deque<Thread> threads_;  // grows to the largest block seen; a fiber stays where it is
  std::uint32_t count_ = 0;     // of the current block
  std::vector<std::uint32_t> order_;
  std::mt19937_64 random_;
  std::vector<std::byte> shared_;
  std::vector<WordHistory> history_;
  std::size_t shared_size_ = 0;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  bool cancelling_ = false;
};

thread_local BlockRunner runner;

void BlockRunner::run_block(const Launch& config, const std::function<void()>& thread_body,
                            std::uint64_t block) {
  ++current.block_serial;
  ++current.epoch;
  body_ = &thread_body;
  failure_ = nullptr;
  random_.seed(order_setting().seed + block);
  shared_size_ = static_cast<std::size_t>(config.shared_bytes);
  if (shared_.size() < shared_size_) {
    shared_.resize((shared_size_ + 15) / 16 * 16);
    history_.resize(shared_.size() / 4);
  }
  std::fill_n(shared_.begin(), shared_size_, std::byte{0xFF});
  count_ = static_cast<std::uint32_t>(config.block.x * config.block.y * config.block.z);
  while (threads_.size() < count_) threads_.emplace_back();
  for (std::uint32_t t = 0; t < count_; ++t) {
    threads_[t].state = State::ready;
    threads_[t].waits_at = {};
  }
  try {
    for (;;) {
      new_order();
      run_until_all_wait();
      if (all_left()) return;
      release_barrier();
    }
  } catch (...) {
    cancel();
    throw;
  }
}

bool BlockRunner::all_left() const {
  return std::all_of(threads_.begin(), threads_.begin() + count_,
                     [](const Thread& t) { return t.state == State::left; });
}

void BlockRunner::new_order() {
  order_.resize(count_);
  for (std::uint32_t t = 0; t < count_; ++t) order_[t] = t;
  const ThreadOrder order = order_setting().order;
  if (order == ThreadOrder::reverse) std::reverse(order_.begin(), order_.end());
  if (order == ThreadOrder::random) std::shuffle(order_.begin(), order_.end(), random_);
}

void BlockRunner::resume(std::uint32_t thread) {
  current.thread = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
               thread / blockDim.x / blockDim.y};
  threads_[thread].fiber.resume([this, thread] {
    try {
      (*body_)();
    } catch (const Cancelled&) {
    } catch (...) {
      failure_ = std::current_exception();
    }
    threads_[thread].state = State::left;
  });
  if (failure_) std::rethrow_exception(failure_);
}

// Runs every thread until it waits at a barrier, waits in an exchange that cannot be completed
// yet, or has left the kernel.
void BlockRunner::run_until_all_wait() {
  for (bool progress = true; progress;) {
    progress = false;
    for (const std::uint32_t thread : order_) {
      if (threads_[thread].state != State::ready) continue;
      resume(thread);
      progress = true;
    }
    for (std::uint32_t thread = 0; thread < count_; ++thread) {
      if (threads_[thread].state == State::at_shuffle && complete_shuffle(thread))
        progress = true;
    }
  }
}

// Exchanges the values of the warp lanes that wait with the same mask as `thread`, if none that
// the mask names is still on its way.
bool BlockRunner::complete_shuffle(std::uint32_t thread) {
  const std::uint32_t mask = threads_[thread].shuffle_mask,
                      warp = thread / kWarpSize * kWarpSize;
  std::uint64_t values[kWarpSize];
  std::uint32_t present = 0;
  for (std::uint32_t lane = 0; lane < kWarpSize && warp + lane < count_; ++lane) {
    const Thread& t = threads_[warp + lane];
    if (!(mask >> lane & 1) || t.state == State::left) continue;
    if (t.state != State::at_shuffle || t.shuffle_mask != mask) return false;
    present |= 1u << lane;
    values[lane] = t.shuffle_value;
  }
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (!(present >> lane & 1)) continue;
    Thread& t = threads_[warp + lane];
    const std::uint32_t from = lane ^ static_cast<std::uint32_t>(t.shuffle_lane_mask);
    t.shuffle_value =
        from < kWarpSize && (present >> from & 1) ? values[from] : ~std::uint64_t{0};
    t.state = State::ready;
  }
  return true;
}

// All threads wait or have left: lets them go on if all wait at one and the same barrier.
void BlockRunner::release_barrier() {
  std::uint32_t waiting = 0;
  while (threads_[waiting].state == State::left) ++waiting;
  for (std::uint32_t other = 0; other < count_; ++other) {
    const Thread& t = threads_[other];
    if (t.state != State::at_barrier || !(t.waits_at == threads_[waiting].waits_at)) {
      fail_divergent(waiting, other);
    }
  }
  ++current.epoch;
  for (std::uint32_t t = 0; t < count_; ++t) threads_[t].state = State::ready;
}

// Some threads of a block wait where the others never come. (A GPU would let a barrier pass
// once the rest of the block has left; CUDA's manual calls that undefined, and so it is an
// error here.)
void BlockRunner::fail_divergent(std::uint32_t waiting, std::uint32_t other) {
  if (threads_[other].state == State::at_barrier &&
      threads_[waiting].state != State::at_barrier) {
    std::swap(waiting, other);  // the barrier is the better place to name first
  }
  const Thread &w = threads_[waiting], &o = threads_[other];
  const bool barrier = w.state == State::at_barrier;
  std::string what = thread_name(waiting) +
                     (barrier ? " waits at __syncthreads()" : " waits in a warp exchange") +
                     " for " + thread_name(other);
  if (o.state == State::at_barrier)
    what += ", which waits at __syncthreads() of " + name(o.waits_at);
  if (o.state == State::at_shuffle)
    what += ", which waits in a warp exchange at " + name(o.waits_at);
  if (o.state == State::left && o.waits_at.line == 0)
    what += ", which left the kernel without meeting a barrier";
  if (o.state == State::left && o.waits_at.line != 0)
    what += ", which left the kernel after " + name(o.waits_at);
  throw DeviceError(name(w.waits_at) + ": divergent: " + what + " (" + block_name() + ")");
}

// Called inside the running thread: back to the runner until that lets it go on.
void BlockRunner::wait(State state, const Source& source) {
  Thread& t = running();
  t.state = state;
  t.waits_at = source;
  t.fiber.suspend();
  if (cancelling_) throw Cancelled{};
}

// Unwinds the stacks of all threads that still wait, so that what they own is released.
void BlockRunner::cancel() {
  cancelling_ = true;
  for (Thread& t : threads_) {
    if (t.fiber.has_suspended_job()) t.fiber.resume([] {});
  }
  cancelling_ = false;
}

[[noreturn]] void fail_race(const Index& index, const char* verb, const WordAccess& earlier,
                            const char* earlier_verb) {
  fail(index.source, std::string("race: ") + verb + " index " + std::to_string(index.value) +
                         " of shared memory, which " + thread_name(earlier.thread) + " " +
                         earlier_verb + " at " + name(earlier.source) +
                         " with no barrier between");
}

}  // namespace

// ---- what kernels call
// -----------------------------------------------------------------------------------

void fail(const Source& source, const std::string& what) {
  throw DeviceError(name(source) + ": " + what + " (" + thread_name(current.thread) + " of " +
                    block_name() + ")");
}

void fail_bounds(const Index& index, std::int64_t element, std::int64_t size,
                 const char* memory) {
  fail(index.source, "out of bounds: element " + std::to_string(element) + " of " + memory +
                         " of " + std::to_string(size));
}

void check_alignment(const void* address, std::size_t alignment, const Source& source) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment == 0) return;
  fail(source, "misaligned: not a multiple of " + std::to_string(alignment) + " bytes");
}

void record_read(WordHistory* history, std::int64_t words, const Index& index) {
  for (WordHistory* word = history; word < history + words; ++word) {
    const auto clashes = [](const WordAccess& a) {
      return a.epoch == current.epoch && a.thread != current.thread;
    };
    if (clashes(word->write)) fail_race(index, "reads", word->write, "wrote");
    if (clashes(word->read)) word->other_read = word->read;
    word->read = {index.source, current.thread, current.epoch};
  }
}

void record_write(WordHistory* history, std::int64_t words, const Index& index) {
  for (WordHistory* word = history; word < history + words; ++word) {
    const auto clashes = [](const WordAccess& a) {
      return a.epoch == current.epoch && a.thread != current.thread;
    };
    if (clashes(word->write)) fail_race(index, "writes", word->write, "wrote");
    if (clashes(word->read)) fail_race(index, "writes", word->read, "read");
    if (clashes(word->other_read)) fail_race(index, "writes", word->other_read, "read");
    word->write = {index.source, current.thread, current.epoch};
  }
}

SharedBytes dynamic_shared_bytes() { return runner.shared_bytes(); }

void barrier(const Source& source) { runner.wait(State::at_barrier, source); }

std::uint64_t shuffle_xor(std::uint32_t mask, std::uint64_t value, int lane_mask,
                          const Source& source) {
  if (!(mask >> current.thread % kWarpSize & 1)) {
    fail(source, "the mask of a warp exchange leaves out the thread that calls it");
  }
  Thread& t = runner.running();
  t.shuffle_mask = mask;
  t.shuffle_value = value;
  t.shuffle_lane_mask = lane_mask;
  runner.wait(State::at_shuffle, source);
  return t.shuffle_value;
}

// ---- a grid
// ------------------------------------------------------------------------------------------------

namespace {

std::atomic<std::int64_t> total_read_bytes{0}, total_written_bytes{0};

// The failure of the lowest block index: blocks start in index order, and none starts after a
// failure, so the same mistake is reported whatever the number of host threads.
struct FirstFailure {
  std::mutex mutex;
  std::int64_t block = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr exception;
  void note(std::int64_t failed_block) {
    const std::lock_guard lock(mutex);
    if (failed_block >= block) return;
    block = failed_block;
    exception = std::current_exception();
  }
};

// One host thread's share of a grid: takes the next block until there is none.
void run_blocks(const Launch& config, const std::function<void()>& thread_body,
                std::atomic<std::int64_t>& next_block, std::atomic<bool>& stop,
                FirstFailure& failure) {
  const auto dim = [](const Extent& e) {
    return dim3{static_cast<unsigned>(e.x), static_cast<unsigned>(e.y),
                static_cast<unsigned>(e.z)};
  };
  blockDim = dim(config.block);
  gridDim = dim(config.grid);
  current.traffic = {};
  const std::int64_t blocks = config.grid.x * config.grid.y * config.grid.z;
  for (std::int64_t block; !stop && (block = next_block++) < blocks;) {
    blockIdx = dim({block % config.grid.x, block / config.grid.x % config.grid.y,
                    block / config.grid.x / config.grid.y});
    try {
      runner.run_block(config, thread_body, static_cast<std::uint64_t>(block));
    } catch (...) {
      stop = true;
      failure.note(block);
    }
  }
  total_read_bytes += current.traffic.read_bytes;
  total_written_bytes += current.traffic.written_bytes;
}

}  // namespace

void run_grid(const Launch& config, const std::function<void()>& thread_body) {
  check_launch(config);
  order_setting();  // a bad environment variable is reported here, not in the middle of a block
  std::atomic<std::int64_t> next_block{0};
  std::atomic<bool> stop{false};
  FirstFailure failure;
#if defined(_OPENMP)
#pragma omp parallel num_threads(std::min(omp_get_max_threads(), kMaxHostThreads))
#endif
  run_blocks(config, thread_body, next_block, stop, failure);
  if (failure.exception) std::rethrow_exception(failure.exception);
}

}  // namespace simulator

void set_thread_order(ThreadOrder order, std::uint64_t seed) {
  simulator::order_setting() = {order, seed};
}

// ---- array.hpp, for this device
// ------------------------------------------------------------------------------

const char* device_kind() { return "sim"; }
bool device_available() { return true; }
std::string device_name() { return "simulator"; }
void synchronize_device() {}

// An H100's.
DeviceLimits device_limits() {
  return {.threads_per_block = 1024,
          .shared_bytes_per_block = 232448,
          .grid_x = 2147483647,
          .grid_y = 65535,
          .grid_z = 65535,
          .multiprocessors = 132};
}

std::optional<Traffic> device_traffic() {
  return Traffic{simulator::total_read_bytes, simulator::total_written_bytes};
}
void reset_device_traffic() {
  simulator::total_read_bytes = simulator::total_written_bytes = 0;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // cudaMalloc's alignment
  if (!data_)
    throw DeviceError("no memory for a device array of " + std::to_string(bytes) + " bytes");
  std::memset(data_, 0xFF, bytes);
}

DeviceMemory::~DeviceMemory() { std::free(data_); }

void DeviceMemory::upload(const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(data_, host, bytes);
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(host, data_, bytes);
}

}  // namespace flash_steps

#include "common/simulator/simulator.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "common/simulator/fiber.hpp"
#include "common/simulator/host_threads.hpp"

namespace flash_steps {
namespace simulator {
namespace {

constexpr std::uint32_t kWarpSize = 32;
constexpr std::int64_t kMaxStaticBytes = 48 * 1024;  // of a block's shared_arrays, as in CUDA
// Each host thread keeps up to 1024 stacks, two mappings each; a process may have 65 530.
constexpr int kMaxHostThreads = 16;
constexpr std::int64_t kMaxPolls = 1
                                   << 21;  // a second or more, unless other blocks are at work

// ---- words for reports

std::string name(Source source) {
  const std::string path = source.file;
  return path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(source.line);
}

std::string name(const char* what, const dim3& index, const dim3& extent) {
  std::string text = std::string(what) + " " + std::to_string(index.x);
  if (extent.y * extent.z > 1) {
    text += "," + std::to_string(index.y) + "," + std::to_string(index.z);
  }
  return text;
}

std::string thread_name(std::uint32_t thread) {
  const dim3 index{thread % blockDim.x, thread / blockDim.x % blockDim.y,
                   thread / blockDim.x / blockDim.y};
  return name("thread", index, blockDim);
}

// ---- one block

enum class State { ready, at_barrier, in_exchange, left };

// One CUDA thread of the block that runs now.
struct Thread {
  dim3 index;
  State state = State::left;
  Source waits_at;          // where it waits; of a thread that left, where it last waited
  std::uint32_t mask = 0;   // in an exchange: the lanes that take part,
  std::uint64_t value = 0;  // what it hands in, then what it receives,
  int lane_mask = 0;        // and from which lane
  std::unique_ptr<Fiber> fiber;
};

bool same_place(Source a, Source b) {  // one file's name may be stored twice
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// The first access on record of its kind, for the report of a race.
struct Access {
  const char* file;
  int line;
  std::uint32_t thread;
};
struct WordAccesses {
  Access write, reads[2];  // by two threads
};

struct Cancelled {};  // thrown in the threads of a block that failed, to unwind them
struct Abandoned {};  // thrown in a thread that waits for other blocks, when one has failed

// Runs blocks one after another on one host thread, and keeps its fibers and its shared memory
// for the next launch.
class BlockRunner {
 public:
  void run_block(std::int64_t dynamic_bytes, const std::function<void()>& thread_body,
                 std::uint64_t block);

  // For the thread that runs.
  Thread& running() { return threads_[current.thread]; }
  void wait(State state, Source source);
  SharedBytes dynamic_shared() { return shared_bytes(kMaxStaticBytes, dynamic_bytes_); }
  SharedBytes take_static_shared(std::int64_t bytes, Source source);
  WordAccesses& accesses(const WordTags* word) { return accesses_[word - tags_.data()]; }

 private:
  void prepare_shared(std::int64_t dynamic_bytes);
  SharedBytes shared_bytes(std::int64_t begin, std::int64_t size);
  void next_epoch();
  void prepare_threads(std::uint64_t block);
  void run_thread();
  void resume(std::uint32_t thread);
  void run_until_all_wait();
  std::optional<std::uint32_t> missing_lane(std::uint32_t thread) const;
  void complete_exchange(std::uint32_t thread);
  bool release_barrier();
  void require_one_barrier(std::uint32_t first) const;
  [[noreturn]] void fail_divergent(std::uint32_t waiting, std::uint32_t other) const;
  void cancel();

  std::vector<Thread> threads_;  // as many as the largest block so far
  std::uint32_t count_ = 0;      // of the current block
  std::vector<std::uint32_t> order_;
  std::mt19937_64 random_;
  std::vector<std::byte> shared_;  // first shared_arrays as they come up, then dynamic memory
  std::int64_t static_bytes_ = 0, dynamic_bytes_ = 0;
  std::vector<WordTags> tags_;  // of each word of shared_
  std::vector<WordAccesses> accesses_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  bool cancelling_ = false;
};

thread_local BlockRunner runner;

void BlockRunner::run_block(std::int64_t dynamic_bytes,
                            const std::function<void()>& thread_body, std::uint64_t block) {
  body_ = &thread_body;
  failure_ = nullptr;
  ++current.block_serial;
  next_epoch();
  prepare_shared(dynamic_bytes);
  prepare_threads(block);
  try {
    do {
      run_until_all_wait();
    } while (release_barrier());
  } catch (...) {
    cancel();
    throw;
  }
}

void BlockRunner::prepare_shared(std::int64_t dynamic_bytes) {
  static_bytes_ = 0;
  dynamic_bytes_ = dynamic_bytes;
  const auto size = static_cast<std::size_t>(kMaxStaticBytes + (dynamic_bytes + 15) / 16 * 16);
  if (shared_.size() < size) {
    shared_.resize(size);
    tags_.resize(size / 4);
    accesses_.resize(size / 4);
  }
  std::fill_n(shared_.begin() + kMaxStaticBytes, dynamic_bytes, std::byte{0xFF});
}

SharedBytes BlockRunner::shared_bytes(std::int64_t begin, std::int64_t size) {
  return {shared_.data() + begin, tags_.data() + begin / 4, size};
}

SharedBytes BlockRunner::take_static_shared(std::int64_t bytes, Source source) {
  const std::int64_t begin = static_bytes_;
  static_bytes_ += (bytes + 15) / 16 * 16;
  const std::int64_t both = static_bytes_ + dynamic_bytes_,
                     limit = device_limits().shared_bytes_per_block;
  if (static_bytes_ > kMaxStaticBytes || both > limit) {
    fail(source, "the shared_arrays of a block take " + std::to_string(static_bytes_) +
                     " bytes (at most " + std::to_string(kMaxStaticBytes) +
                     "), with dynamic shared memory " + std::to_string(both) + " (at most " +
                     std::to_string(limit) + ")");
  }
  std::fill_n(shared_.begin() + begin, bytes, std::byte{0xFF});
  return shared_bytes(begin, bytes);
}

// From here on, nothing that any thread did before makes a race.
void BlockRunner::next_epoch() {
  if (current.several > std::numeric_limits<Tag>::max() - kEpoch) {  // they begin anew
    std::fill(tags_.begin(), tags_.end(), WordTags{});
    current.several = kSeveral;
  }
  current.several += kEpoch;
}

void BlockRunner::prepare_threads(std::uint64_t block) {
  count_ = blockDim.x * blockDim.y * blockDim.z;
  if (threads_.size() < count_) threads_.resize(count_);
  for (std::uint32_t t = 0; t < count_; ++t) {
    Thread& thread = threads_[t];
    if (!thread.fiber) thread.fiber = std::make_unique<Fiber>([this] { run_thread(); });
    thread.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    thread.state = State::ready;
    thread.waits_at = {};
  }
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), 0u);
  const OrderSetting& setting = order_setting();
  if (setting.order == ThreadOrder::reverse) std::reverse(order_.begin(), order_.end());
  if (setting.order == ThreadOrder::random) {
    // By seed and block, so that it does not matter which host thread runs which blocks.
    random_.seed(setting.seed * 1000003 + block);
    std::shuffle(order_.begin(), order_.end(), random_);
  }
}

// What a fiber does: the whole kernel, as the thread that was resumed first.
void BlockRunner::run_thread() {
  const std::uint32_t thread = current.thread;
  try {
    (*body_)();
  } catch (const Cancelled&) {
  } catch (...) {
    failure_ = std::current_exception();
  }
  threads_[thread].state = State::left;
}

void BlockRunner::resume(std::uint32_t thread) {
  current.thread = thread;
  current.tag = current.several - kSeveral + thread;
  threadIdx = threads_[thread].index;
  threads_[thread].fiber->resume();
}

// Runs every thread until it waits at a barrier, waits in an exchange that cannot be completed
// yet, or has left the kernel.
void BlockRunner::run_until_all_wait() {
  for (bool progress = true; progress;) {
    for (const std::uint32_t thread : order_) {
      if (threads_[thread].state != State::ready) continue;
      resume(thread);
      if (failure_) std::rethrow_exception(failure_);
    }
    progress = false;
    for (std::uint32_t thread = 0; thread < count_; ++thread) {
      if (threads_[thread].state != State::in_exchange || missing_lane(thread)) continue;
      complete_exchange(thread);
      progress = true;
    }
  }
}

// The first thread that the exchange of `thread` still awaits: a lane named in the mask that
// has neither left nor come to the same exchange.
std::optional<std::uint32_t> BlockRunner::missing_lane(std::uint32_t thread) const {
  const Thread& waiting = threads_[thread];
  const std::uint32_t warp = thread / kWarpSize * kWarpSize;
  for (std::uint32_t t = warp; t < std::min(warp + kWarpSize, count_); ++t) {
    const Thread& other = threads_[t];
    if (!(waiting.mask >> (t - warp) & 1) || other.state == State::left) continue;
    if (other.state != State::in_exchange || other.mask != waiting.mask ||
        !same_place(other.waits_at, waiting.waits_at)) {
      return t;
    }
  }
  return std::nullopt;
}

// Exchanges the values of the lanes that wait with `thread`: those of its mask that have not
// left.
void BlockRunner::complete_exchange(std::uint32_t thread) {
  const std::uint32_t mask = threads_[thread].mask, warp = thread / kWarpSize * kWarpSize,
                      lanes = std::min(kWarpSize, count_ - warp);
  std::uint64_t values[kWarpSize];
  std::fill_n(values, kWarpSize, ~std::uint64_t{0});
  const auto takes_part = [&](std::uint32_t lane) {
    return (mask >> lane & 1) && threads_[warp + lane].state == State::in_exchange;
  };
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    if (takes_part(lane)) values[lane] = threads_[warp + lane].value;
  }
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    if (!takes_part(lane)) continue;
    Thread& t = threads_[warp + lane];
    const std::uint32_t from = lane ^ static_cast<std::uint32_t>(t.lane_mask);
    t.value = from < kWarpSize ? values[from] : ~std::uint64_t{0};
    t.state = State::ready;
  }
}

// All threads wait or have left. If all wait at one and the same barrier, lets them go on; if
// all have left, returns false.
bool BlockRunner::release_barrier() {
  std::uint32_t first = 0;
  while (first < count_ && threads_[first].state == State::left) ++first;
  if (first == count_) return false;
  require_one_barrier(first);
  next_epoch();
  for (std::uint32_t t = 0; t < count_; ++t) threads_[t].state = State::ready;
  if (order_setting().order == ThreadOrder::random) {
    std::shuffle(order_.begin(), order_.end(), random_);
  }
  return true;
}

std::string waits(const Thread& thread) {
  if (thread.state == State::at_barrier) return "waits at __syncthreads()";
  char mask[11];
  std::snprintf(mask, sizeof mask, "0x%08x", thread.mask);
  return std::string("waits in a warp exchange with mask ") + mask;
}

void BlockRunner::fail_divergent(std::uint32_t waiting, std::uint32_t other) const {
  const Thread &w = threads_[waiting], &o = threads_[other];
  std::string what = "divergent: " + thread_name(waiting) + " " + waits(w) + " for " +
                     thread_name(other) + ", which ";
  if (o.state != State::left) {
    what += waits(o) + " at " + name(o.waits_at);
  } else if (o.waits_at.line > 0) {
    what += "left the kernel after it had waited at " + name(o.waits_at);
  } else {
    what += "left the kernel without waiting anywhere";
  }
  fail(w.waits_at, what);
}

// Throws if some thread waits where another never comes. (A GPU lets a barrier pass once the
// rest of the block has left, and does not tell barriers apart; CUDA's manual calls that
// undefined, and so it is an error here.)
void BlockRunner::require_one_barrier(std::uint32_t first) const {
  for (std::uint32_t t = 0; t < count_; ++t) {
    // An exchange that awaits nobody would be over.
    if (threads_[t].state == State::in_exchange) fail_divergent(t, *missing_lane(t));
  }
  for (std::uint32_t t = 0; t < count_; ++t) {
    if (threads_[t].state == State::left ||
        !same_place(threads_[t].waits_at, threads_[first].waits_at)) {
      fail_divergent(first, t);
    }
  }
}

// Called inside the running thread: back to the runner until that lets it go on.
void BlockRunner::wait(State state, Source source) {
  Thread& thread = running();
  thread.state = state;
  thread.waits_at = source;
  thread.fiber->suspend();
  if (cancelling_) throw Cancelled{};
}

// Unwinds the stacks of all threads that still wait, so that what they own is released.
void BlockRunner::cancel() {
  cancelling_ = true;
  for (std::uint32_t t = 0; t < count_; ++t) {
    if (threads_[t].fiber->in_job()) resume(t);
  }
  cancelling_ = false;
}

[[noreturn]] void fail_race(Source source, const char* verb, std::int64_t index,
                            const Access& earlier, const char* earlier_verb) {
  fail(source, "race: " + thread_name(current.thread) + " " + verb + " index " +
                   std::to_string(index) + " of shared memory, which " +
                   thread_name(earlier.thread) + " " + earlier_verb + " at " +
                   name({earlier.file, earlier.line}) + " with no barrier between");
}

bool same_epoch(Tag a, Tag b) { return a / kEpoch == b / kEpoch; }

}  // namespace

// ---- what kernels call

void fail(Source source, const std::string& what) {
  throw DeviceError(name(source) + ": " + what + " (" + name("block", blockIdx, gridDim) + ")");
}

void fail_bounds(Source source, std::int64_t index, std::int64_t size, const char* memory) {
  fail(source, "out of bounds: " + thread_name(current.thread) + " is at index " +
                   std::to_string(index) + " of " + memory + " of " + std::to_string(size));
}

void check_alignment(const void* address, std::size_t alignment, Source source) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment == 0) return;
  fail(source, "misaligned: the address that " + thread_name(current.thread) +
                   " takes is not a multiple of " + std::to_string(alignment) + " bytes");
}

void record_new_read(WordTags* word, Source source, std::int64_t index) {
  WordAccesses& accesses = runner.accesses(word);
  if (same_epoch(word->write, current.tag)) {
    if (word->write == current.tag) return;  // its own: no other thread may come near anyway
    fail_race(source, "reads", index, accesses.write, "wrote");
  }
  const bool second = same_epoch(word->read, current.tag);
  accesses.reads[second] = {source.file, source.line, current.thread};
  word->read = second ? current.several : current.tag;
}

void record_new_write(WordTags* word, Source source, std::int64_t index) {
  WordAccesses& accesses = runner.accesses(word);
  if (same_epoch(word->write, current.tag)) {
    fail_race(source, "writes", index, accesses.write, "wrote");
  }
  if (same_epoch(word->read, current.tag) && word->read != current.tag) {
    const bool own = accesses.reads[0].thread == current.thread;
    fail_race(source, "writes", index, accesses.reads[own], "read");
  }
  accesses.write = {source.file, source.line, current.thread};
  word->write = current.tag;
}

SharedBytes dynamic_shared_bytes() { return runner.dynamic_shared(); }
SharedBytes take_static_shared(std::int64_t bytes, Source source) {
  return runner.take_static_shared(bytes, source);
}

void barrier(Source source) { runner.wait(State::at_barrier, source); }

std::uint64_t shuffle_xor(std::uint32_t mask, std::uint64_t value, int lane_mask,
                          Source source) {
  if (!(mask >> current.thread % kWarpSize & 1)) {
    fail(source, "warp exchange: its mask leaves out " + thread_name(current.thread) +
                     ", which calls it");
  }
  Thread& thread = runner.running();
  thread.mask = mask;
  thread.value = value;
  thread.lane_mask = lane_mask;
  runner.wait(State::in_exchange, source);
  return thread.value;
}

void polled(const void* address, bool unchanged, Source source) {
  const bool again = unchanged && address == current.polled;
  current.polled = unchanged ? address : nullptr;
  if (!again) {
    current.polls = 0;
    return;
  }
  if (*current.launch_failed) throw Abandoned{};  // who is waited for may never come
  if (++current.polls > kMaxPolls) {
    fail(source, "deadlock: " + thread_name(current.thread) +
                     " polls for ever; a block may wait for lower-numbered blocks only");
  }
  std::this_thread::yield();
}

// ---- a grid

namespace {

dim3 to_dim3(std::int64_t x, std::int64_t y, std::int64_t z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

int count_host_threads() {
#if defined(_OPENMP)
  const int count = omp_get_max_threads();  // OMP_NUM_THREADS, or all
#else
  const int count = static_cast<int>(std::thread::hardware_concurrency());
#endif
  return std::clamp(count, 1, kMaxHostThreads);
}

// The failure of the lowest block. As blocks start in index order and none starts after a
// failure, it is the same one for any number of host threads.
class FirstFailure {
 public:
  void note(std::int64_t block) {
    const std::lock_guard lock(mutex_);
    if (failed && block_ < block) return;
    failed = true;
    block_ = block;
    exception_ = std::current_exception();
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }
  std::atomic<bool> failed{false};

 private:
  std::mutex mutex_;
  std::int64_t block_ = 0;
  std::exception_ptr exception_;
};

}  // namespace

void run_grid(const Launch& config, const std::function<void()>& thread_body) {
  check_launch(config);
  order_setting();  // a bad environment variable is reported here, not in the middle of a block
  const Extent &grid = config.grid, &block = config.block;
  const std::int64_t blocks = grid.x * grid.y * grid.z;
  std::atomic<std::int64_t> next_block{0};
  FirstFailure failure;

  const auto run_share = [&] {  // of one host thread: the next block until there is none
    blockDim = to_dim3(block.x, block.y, block.z);
    gridDim = to_dim3(grid.x, grid.y, grid.z);
    current.traffic = {};
    current.polled = nullptr;
    current.polls = 0;
    current.launch_failed = &failure.failed;
    for (std::int64_t b; !failure.failed && (b = next_block++) < blocks;) {
      blockIdx = to_dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
      try {
        runner.run_block(config.shared_bytes, thread_body, static_cast<std::uint64_t>(b));
      } catch (const Abandoned&) {
      } catch (...) {
        failure.note(b);
      }
    }
    add_traffic(current.traffic);
  };
  static HostThreads host_threads(count_host_threads() - 1);
  blocks > 1 ? host_threads.run(run_share) : run_share();
  failure.rethrow();
}

}  // namespace simulator
}  // namespace flash_steps

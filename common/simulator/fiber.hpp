// A fiber that runs its job any number of times, on a stack of its own that a host thread
// switches to and from (Boost.Context).
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)  // g++
#define FLASH_STEPS_ASAN 1
#elif defined(__has_feature)  // clang++
#if __has_feature(address_sanitizer)
#define FLASH_STEPS_ASAN 1
#endif
#endif
#if defined(FLASH_STEPS_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace flash_steps::simulator {

// AddressSanitizer must be told of every switch, or it takes the other stack for an overflow.
// `fake_stack` is where it keeps what it knows of the stack that is left.
#if defined(FLASH_STEPS_ASAN)
inline constexpr std::size_t kFiberStackBytes = 256 * 1024;
inline void leave_stack(void** fake_stack, const void* next_bottom, std::size_t next_bytes) {
  __sanitizer_start_switch_fiber(fake_stack, next_bottom, next_bytes);
}
inline void enter_stack(void* fake_stack, const void** last_bottom, std::size_t* last_bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, last_bottom, last_bytes);
}
#else
inline constexpr std::size_t kFiberStackBytes = 64 * 1024;
inline void leave_stack(void**, const void*, std::size_t) {}
inline void enter_stack(void*, const void**, std::size_t*) {}
#endif

class Fiber {
 public:
  // The job must not throw.
  explicit Fiber(std::function<void()> job) : job_(std::move(job)) {}
  Fiber(const Fiber&) = delete;  // its stack knows its address
  ~Fiber() {                     // not while its job is suspended
    if (!inside_) return;
    stopping_ = true;
    switch_in();
  }

  // Starts the job, or goes on with it where it is suspended. Returns when it suspends or ends.
  void resume() {
    if (!inside_) create();
    in_job_ = true;
    switch_in();
  }
  // Called by the job: back to resume().
  void suspend() {
    void* fake_stack = nullptr;
    leave_stack(&fake_stack, outside_bottom_, outside_bytes_);
    outside_ = std::move(outside_).resume();
    enter_stack(fake_stack, &outside_bottom_, &outside_bytes_);
  }
  bool in_job() const { return in_job_; }  // it has begun and not ended

 private:
  void create() {
    boost::context::protected_fixedsize_stack stacks(kFiberStackBytes);
    const boost::context::stack_context stack = stacks.allocate();
    bottom_ = static_cast<char*>(stack.sp) - stack.size;
    bytes_ = stack.size;
    inside_ = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), stacks,
        [this](boost::context::fiber&& outside) { return run(std::move(outside)); });
  }

  boost::context::fiber run(boost::context::fiber&& outside) {
    outside_ = std::move(outside);
    enter_stack(nullptr, &outside_bottom_, &outside_bytes_);
    while (!stopping_) {
      job_();
      in_job_ = false;
      suspend();
    }
    leave_stack(nullptr, outside_bottom_, outside_bytes_);
    return std::move(outside_);
  }

  void switch_in() {
    void* fake_stack = nullptr;
    leave_stack(&fake_stack, bottom_, bytes_);
    inside_ = std::move(inside_).resume();
    enter_stack(fake_stack, nullptr, nullptr);
  }

  std::function<void()> job_;
  boost::context::fiber inside_, outside_;
  bool in_job_ = false, stopping_ = false;
  void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace flash_steps::simulator

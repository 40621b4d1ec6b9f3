// A fiber that runs one job after another, on a stack of its own that a host thread switches to
// and from (Boost.Context). AddressSanitizer must be told of every switch, or it takes the
// other stack for an overflow.
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

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;  // its stack knows its address
  ~Fiber() {
    if (!inside_) return;
    stopping_ = true;
    switch_in();
  }

  // Starts `job`, or goes on with the job that is suspended. Returns when it suspends or ends;
  // the job must not throw.
  template <class Job>
  void resume(const Job& job) {
    if (!running_) job_ = job;
    running_ = true;
    if (!inside_) create();
    switch_in();
  }

  // Called by the job: back to resume().
  void suspend() { switch_out(); }

  bool has_suspended_job() const { return running_; }

 private:
#if defined(FLASH_STEPS_ASAN)
  static constexpr std::size_t kStackBytes = 256 * 1024;
#else
  static constexpr std::size_t kStackBytes = 64 * 1024;
#endif

  void create() {
    boost::context::protected_fixedsize_stack stacks(kStackBytes);
    const boost::context::stack_context stack = stacks.allocate();
    bottom_ = static_cast<char*>(stack.sp) - stack.size;
    bytes_ = stack.size;
    inside_ = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), stacks,
        [this](boost::context::fiber&& outside) { return run(std::move(outside)); });
  }

  boost::context::fiber run(boost::context::fiber&& outside) {
    outside_ = std::move(outside);
    arrived_inside();
    while (!stopping_) {
      job_();
      running_ = false;
      switch_out();
    }
    leaving_inside(nullptr);
    return std::move(outside_);
  }

  void switch_in() {
#if defined(FLASH_STEPS_ASAN)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, bottom_, bytes_);
    inside_ = std::move(inside_).resume();
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
    inside_ = std::move(inside_).resume();
#endif
  }

  void switch_out() {
    leaving_inside(&fake_stack_);
    outside_ = std::move(outside_).resume();
    arrived_inside();
  }

  void leaving_inside([[maybe_unused]] void** fake_stack) {
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_start_switch_fiber(fake_stack, outside_bottom_, outside_bytes_);
#endif
  }
  void arrived_inside() {
#if defined(FLASH_STEPS_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack_, &outside_bottom_, &outside_bytes_);
#endif
  }

  boost::context::fiber inside_, outside_;
  std::function<void()> job_;
  bool running_ = false, stopping_ = false;
  void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace flash_steps::simulator

// Host threads that help the one which launches a kernel. They sleep in between, and nobody
// waits for one that has not begun to help: in a team of OpenMP threads everybody waits for
// everybody, which costs a small launch milliseconds where the machine is busy.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace flash_steps::simulator {

class HostThreads {
 public:
  explicit HostThreads(int helpers) {
    for (int i = 0; i < helpers; ++i) helpers_.emplace_back([this] { help(); });
  }
  ~HostThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  // Calls `work` here, and at the same time in every helper that comes in time. It must not
  // throw, and returns where nothing is left to do. While the helpers are with another run()
  // this one goes without.
  void run(const std::function<void()>& work) {
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn) return work();
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      ++number_;
    }
    wake_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    work_ = nullptr;  // who has not begun never will
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void help() {
    std::unique_lock lock(mutex_);
    for (std::uint64_t last = 0;;) {
      wake_.wait(lock, [&] { return stopping_ || (work_ && number_ != last); });
      if (stopping_) return;
      last = number_;
      ++busy_;
      const std::function<void()>& work = *work_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, idle_;
  const std::function<void()>* work_ = nullptr;
  std::uint64_t number_ = 0;  // of the run, so that a helper comes once to each
  int busy_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace flash_steps::simulator

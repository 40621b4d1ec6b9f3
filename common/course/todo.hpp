// What stands in a starter where a student's lines will be:
//
//   // [begin 04.visible-keys]
//   // How many leading keys of the tile the row sees.
//   return todo("04.visible-keys");
//   // [end]
//
// On the host and in the simulator, todo throws, so that a test says "not started" and nothing
// is computed. In a kernel on a GPU, which cannot throw, it does nothing: what the kernel
// should have written stays NaN. A starter's build includes this file everywhere
// (common/cmake/FlashStepsCompile.cmake); the reference knows nothing of it.
#pragma once

#include <exception>
#include <limits>
#include <string>
#include <type_traits>

namespace flash_steps {

// Not derived from what the code under test throws, so that no test takes it for that.
class NotStarted : public std::exception {
 public:
  explicit NotStarted(const std::string& id) : text_("not started: " + id) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Stands for a value of any type, where one must be returned: NaN if the type has it.
struct Todo {
  template <class T>
  constexpr operator T() const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::numeric_limits<T>::quiet_NaN();
    } else {
      return T{};
    }
  }
};

constexpr Todo todo([[maybe_unused]] const char* id) {
#if !defined(__CUDA_ARCH__)
  if (id) throw NotStarted(id);
#endif
  return {};
}

}  // namespace flash_steps

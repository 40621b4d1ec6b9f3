// The shape of a launch: the part that a GPU and the simulator share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flash_steps {

// A number of blocks or threads along x, y, z. Signed 64-bit, so that a size too large for CUDA
// is still itself when it is checked.
struct Extent {
  std::int64_t x, y, z;
  Extent(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) : x(x), y(y), z(z) {}
};

// grid: blocks; block: threads in each; shared_bytes: dynamic shared memory of each block.
// `caller` is the function that launches, for messages; it fills itself in.
struct Launch {
  Extent grid, block;
  std::int64_t shared_bytes;
  const char* caller;
  Launch(Extent grid, Extent block, std::int64_t shared_bytes = 0,
         const char* caller = __builtin_FUNCTION())
      : grid(grid), block(block), shared_bytes(shared_bytes), caller(caller) {}
};

// Checks a launch against device_limits(). Throws std::invalid_argument naming the value and
// the limit. Empty grids are refused too: a launcher with nothing to do returns before it
// launches.
void check_launch(const Launch& config);

// The CUDA backend's part, around the launch itself. The first checks what this kernel needs
// beside what the launch asks for (registers, shared arrays), throwing std::invalid_argument
// with the value and the limit, and opts in to the shared memory; the second throws DeviceError
// if the launch failed.
void before_launch(const void* kernel, const Launch& config);
void after_launch();

}  // namespace flash_steps

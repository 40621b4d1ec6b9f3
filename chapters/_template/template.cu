// Chapter NN: a vector times a number, on the device. The equations and the marks [n] are those
// of template.hpp.
#include "template_cuda.hpp"

#include <string>

#include "common/device/kernel.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 256;

// One thread: one element.
__global__ void scale_kernel(global<const float> x,  // (N)
                             global<float> y,        // (N)
                             std::int64_t N, float a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // [begin NN.scale-cuda]
  if (i < N) y[i] = a * x[i];  // [1]
  // [end]
}

}  // namespace

void scale_cuda(const DeviceArray<float>& x, DeviceArray<float>& y, float a) {
  const std::int64_t N = x.size();
  if (y.size() != N) {
    require(false, "y must have the size of x, " + std::to_string(N) + ", found " +
                       std::to_string(y.size()));
  }
  if (N == 0) return;
  launch(scale_kernel, {ceil_div(N, kThreads), kThreads}, x, y, N, a);
}

}  // namespace flash_steps

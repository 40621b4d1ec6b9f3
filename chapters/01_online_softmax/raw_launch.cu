// weights_raw: with nvcc what raw_launch.cuh has, without it a refusal.
#include "chapters/01_online_softmax/raw_launch.hpp"

#if defined(__CUDACC__)
#include "chapters/01_online_softmax/raw_launch.cuh"
#else
#include "common/device/array.hpp"

namespace flash_steps {

std::vector<float> weights_raw(const std::vector<float>&, float, float) {
  throw DeviceError("weights_raw: raw CUDA needs nvcc and a GPU");
}

}  // namespace flash_steps
#endif

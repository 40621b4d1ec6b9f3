// What launch() and DeviceArray hide, in CUDA's own calls: allocate, copy, <<<>>>, check, copy
// back, free. With nvcc and a GPU only; the simulator does not know <<<>>>.
#pragma once

#include <vector>

namespace flash_steps {

// p_i = exp(x_i - m) / l, computed on the GPU. x of any length, 0 too; m finite, l > 0. Throws
// DeviceError if a call of CUDA fails, or if this build has no nvcc.
std::vector<float> weights_raw(const std::vector<float>& x, float m, float l);

}  // namespace flash_steps

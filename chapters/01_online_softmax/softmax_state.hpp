// The state of an online softmax, on the CPU and on the device. No Eigen: nvcc reads this file
// too.
#pragma once

#include <limits>

namespace flash_steps {

// What is known of the elements seen so far. The two belong together: l says nothing without
// the maximum that it is relative to.
template <class T>
struct SoftmaxState {
  T m = -std::numeric_limits<T>::infinity();  // running maximum
  T l = 0;                                    // running sum of exp(x - m)
};

}  // namespace flash_steps

#include "template.hpp"

#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {

template <class T>
void scale_cpu(VectorIn<T> x, VectorOut<T> y, T a) {
  if (y.size() != x.size()) {
    require(false, "y must have the size of x, " + std::to_string(x.size()) + ", found " +
                       std::to_string(y.size()));
  }
  // [begin NN.scale]
  y = a * x;  // [1]
  // [end]
}

template void scale_cpu<float>(VectorIn<float>, VectorOut<float>, float);
template void scale_cpu<double>(VectorIn<double>, VectorOut<double>, double);

}  // namespace flash_steps

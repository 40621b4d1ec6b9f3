// Chapter NN: a vector times a number, on the CPU.
//
//   y = a * x     (N)  output
//
// The header of a chapter has the equations with their shapes, says what is never stored, and
// names the paper and the algorithm whose lines the marks [n] refer to.
#pragma once

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// y = a * x, x (N) -> y (N), T = float or double; N may be 0, y may be x. NaN and infinity are
// multiplied like any number. Throws std::invalid_argument if the sizes differ.
template <class T>
void scale_cpu(VectorIn<T> x, VectorOut<T> y, T a);

}  // namespace flash_steps

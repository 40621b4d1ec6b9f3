// Chapter 01: online softmax, on the CPU.
//
//   m   = max_i x_i
//   l   = sum_i exp(x_i - m)       m and l in one pass over x (N)
//   p_i = exp(x_i - m) / l         (N) output, a second pass
//   LSE = m + ln l                 natural logarithm: exp(LSE) = sum_i exp(x_i)
//
// [n] marks line n of Algorithm 3 in Milakov and Gimelshein 2018, "Online normalizer
// calculation for softmax" (arXiv:1805.02867), where l is called d.
//
// NaN or +inf in x makes l, LSE and every p_i NaN (m is then unspecified). Without elements, or
// if all of them are -inf, m = -inf, l = 0, LSE = -inf and p = 0. Otherwise 1 <= l <= N.
#pragma once

#include "chapters/01_online_softmax/softmax_state.hpp"
#include "common/tensor/matrix.hpp"

namespace flash_steps {

// Takes one more element into the state.
template <class T>
void push(SoftmaxState<T>& state, T x);

// The state of all elements that went into a or into b, in any order: merge(a, b) and merge(b,
// a) have the same bits. A state is empty iff l = 0, whatever its m is, and changes nothing.
template <class T>
SoftmaxState<T> merge(SoftmaxState<T> a, SoftmaxState<T> b);

// m + ln l; -inf if the state is empty.
template <class T>
T lse(SoftmaxState<T> state);

// The state of x (N), in one pass.
template <class T>
SoftmaxState<T> softmax_state(VectorIn<T> x);

// p_i = exp(x_i - m) / l, x (N) -> p (N); 0 if the state is empty. p may be x.
template <class T>
void normalise(SoftmaxState<T> state, VectorIn<T> x, VectorOut<T> p);

// p = softmax(x), x (N) -> p (N), T = float or double; N may be 0. Returns the state. p may be
// x. Throws std::invalid_argument if the sizes differ.
template <class T>
SoftmaxState<T> online_softmax_cpu(VectorIn<T> x, VectorOut<T> p);

// The same for every row of X (rows, cols) -> P (rows, cols), rows in parallel; either size may
// be 0.
template <class T>
void online_softmax_rows_cpu(MatrixIn<T> X, MatrixOut<T> P);

}  // namespace flash_steps

#include "chapters/01_online_softmax/online_softmax.hpp"

#include <cmath>
#include <string>
#include <utility>

#include "common/tensor/parallel_for.hpp"
#include "common/tensor/require.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {

template <class T>
void push(SoftmaxState<T>& state, T x) {
  // [begin 01.push]
  if (x > state.m) {                   // [4] a new maximum:
    state.l *= std::exp(state.m - x);  // [5] the old sum, relative to it (0 before the first x)
    state.m = x;
  }
  // while all elements are -inf, (-inf) - (-inf) is kept out of the exponent
  const T shift = state.m == -kInf<T> ? T(0) : state.m;
  state.l += std::exp(x - shift);  // [5]
  // [end]
}

template <class T>
SoftmaxState<T> merge(SoftmaxState<T> a, SoftmaxState<T> b) {
  // [begin 01.merge]
  if (a.l == T(0)) return b;  // empty: l says so, for m may be anything
  if (b.l == T(0)) return a;
  if (a.m < b.m) std::swap(a, b);
  a.l += b.l * std::exp(b.m - a.m);  // b's sum, relative to the larger maximum
  return a;
  // [end]
}

template <class T>
T lse(SoftmaxState<T> state) {
  // [begin 01.lse]
  return state.l == T(0) ? -kInf<T> : state.m + std::log(state.l);
  // [end]
}

template <class T>
SoftmaxState<T> softmax_state(VectorIn<T> x) {
  const Index N = x.size();
  SoftmaxState<T> state;  // [1] [2]
  // [begin 01.one-pass]
  // A long sum of small terms loses their last digits (in float32 it stops growing at 2^24), so
  // at most 128 elements are added in a row; longer vectors are merged from their halves.
  if (N <= 128) {
    for (Index i = 0; i < N; ++i) push(state, x[i]);  // [3]
  } else {
    state = merge(softmax_state<T>(x.head(N / 2)), softmax_state<T>(x.tail(N - N / 2)));
  }
  // [end]
  return state;
}

template <class T>
void normalise(SoftmaxState<T> state, VectorIn<T> x, VectorOut<T> p) {
  // [begin 01.normalise]
  for (Index i = 0; i < x.size(); ++i) {                                 // [7]
    p[i] = state.l == T(0) ? T(0) : std::exp(x[i] - state.m) / state.l;  // [8] never 0/0
  }
  // [end]
}

template <class T>
SoftmaxState<T> online_softmax_cpu(VectorIn<T> x, VectorOut<T> p) {
  require(p.size() == x.size(), "p must be as long as x, " + std::to_string(x.size()) +
                                    ", found " + std::to_string(p.size()));
  const SoftmaxState<T> state = softmax_state<T>(x);
  normalise<T>(state, x, p);
  return state;
}

// [begin 01.rows]
template <class T>
void online_softmax_rows_cpu(MatrixIn<T> X, MatrixOut<T> P) {
  require_shape("P", shape_of(P), shape_of(X));
  parallel_for(X.rows(), true, [&](Index r) {
    online_softmax_cpu<T>(X.row(r).transpose(), P.row(r).transpose());
  });
}
// [end]

template void push<float>(SoftmaxState<float>&, float);
template void push<double>(SoftmaxState<double>&, double);
template SoftmaxState<float> merge<float>(SoftmaxState<float>, SoftmaxState<float>);
template SoftmaxState<double> merge<double>(SoftmaxState<double>, SoftmaxState<double>);
template float lse<float>(SoftmaxState<float>);
template double lse<double>(SoftmaxState<double>);
template SoftmaxState<float> softmax_state<float>(VectorIn<float>);
template SoftmaxState<double> softmax_state<double>(VectorIn<double>);
template void normalise<float>(SoftmaxState<float>, VectorIn<float>, VectorOut<float>);
template void normalise<double>(SoftmaxState<double>, VectorIn<double>, VectorOut<double>);
template SoftmaxState<float> online_softmax_cpu<float>(VectorIn<float>, VectorOut<float>);
template SoftmaxState<double> online_softmax_cpu<double>(VectorIn<double>, VectorOut<double>);
template void online_softmax_rows_cpu<float>(MatrixIn<float>, MatrixOut<float>);
template void online_softmax_rows_cpu<double>(MatrixIn<double>, MatrixOut<double>);

}  // namespace flash_steps

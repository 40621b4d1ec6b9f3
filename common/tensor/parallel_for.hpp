// A loop whose turns do not depend on each other, on all cores if OpenMP is there.
#pragma once

#include <exception>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// body(i) for i = 0 .. count - 1: in any order on several threads, or in order on this one if
// not `parallel` or if there is only one turn. Rethrows what a turn throws, one of them if
// several do.
template <class Body>
void parallel_for(Index count, bool parallel, const Body& body) {
  if (!parallel || count <= 1) {
    for (Index i = 0; i < count; ++i) body(i);
    return;
  }
  std::exception_ptr failure;  // an exception must not leave an OpenMP region
#pragma omp parallel for schedule(dynamic)
  for (Index i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical(flash_steps_parallel_for)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace flash_steps

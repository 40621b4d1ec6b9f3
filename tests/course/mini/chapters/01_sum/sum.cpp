#include "chapters/01_sum/sum.hpp"

#include <cstdlib>

#include "chapters/01_sum/twice.cuh"

double sum(const std::vector<double>& x) {
  // [begin 01.sum]
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) total += value(x, i);
  return total;
  // [end]
}

double mean(const std::vector<double>& x) {
  // [begin 01.mean]
  return sum(x) / static_cast<double>(x.size());
  // [end]
}

double shown() {
  // [begin 01.shown]
  return 42;
  // [end]
}

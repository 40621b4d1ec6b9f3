// Random inputs for demonstrations, tests and benchmarks: the same numbers on every platform.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// (rows, cols) independent normal numbers of mean 0 and the given standard deviation. Different
// seeds, and different streams of one seed (one for Q, one for K, ...), give different numbers.
// The standard library's normal_distribution differs between platforms; Box and Muller's method
// does not.
template <class T>
Matrix<T> random_matrix(Index rows, Index cols, std::uint64_t seed, std::uint64_t stream,
                        double deviation = 1.0) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      static_cast<std::uint32_t>(stream),
                      static_cast<std::uint32_t>(stream >> 32)};
  std::mt19937_64 bits(mixed);
  const auto uniform = [&] {
    return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53;
  };  // (0, 1)
  constexpr double kTwoPi = 6.283185307179586;
  Matrix<T> result(rows, cols);
  for (Index i = 0; i < result.size(); ++i) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    result.data()[i] = static_cast<T>(deviation * radius * std::cos(kTwoPi * uniform()));
  }
  return result;
}

}  // namespace flash_steps

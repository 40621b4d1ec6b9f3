// Random inputs for demonstrations, tests and benchmarks: the same numbers on every platform.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "common/tensor/matrix.hpp"

namespace flash_steps {

// FLASH_STEPS_DATA_SEED: another value, other numbers from every seed. A homework is graded by
// the tests that everybody can read, on data that nobody has seen.
inline std::uint64_t data_seed() {
  static const std::uint64_t value = [] {
    const char* text = std::getenv("FLASH_STEPS_DATA_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 0;
  }();
  return value;
}

// (rows, cols) independent normal numbers of mean 0 and the given standard deviation. Different
// seeds, and different streams of one seed (one for Q, one for K, ...), give different numbers.
// The standard library's normal_distribution differs between platforms; Box and Muller's method
// does not.
template <class T>
Matrix<T> random_matrix(Index rows, Index cols, std::uint64_t seed, std::uint64_t stream,
                        double deviation = 1.0) {
  std::vector<std::uint32_t> words;
  for (const std::uint64_t number : {seed, stream}) {
    words.push_back(static_cast<std::uint32_t>(number));
    words.push_back(static_cast<std::uint32_t>(number >> 32));
  }
  if (data_seed() != 0) {
    words.push_back(static_cast<std::uint32_t>(data_seed()));
    words.push_back(static_cast<std::uint32_t>(data_seed() >> 32));
  }
  std::seed_seq mixed(words.begin(), words.end());
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

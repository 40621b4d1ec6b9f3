// Sizes and tiles, as cases go through them and as a failure shows them: CAPTURE(size).
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <ostream>

#include "common/tensor/matrix.hpp"
#include "common/tensor/tiling.hpp"

namespace flash_steps {

inline std::ostream& operator<<(std::ostream& out, const Tiling& tile) {
  return out << "Br = " << tile.Br << ", Bc = " << tile.Bc;
}

}  // namespace flash_steps

namespace flash_steps::test {

struct Size {
  Index Nq, Nk;
};
inline std::ostream& operator<<(std::ostream& out, const Size& size) {
  return out << "Nq = " << size.Nq << ", Nk = " << size.Nk;
}

struct BatchSize {
  Index B, H, Hkv, Nq, Nk, d;
};
inline std::ostream& operator<<(std::ostream& out, const BatchSize& s) {
  return out << "B = " << s.B << ", H = " << s.H << ", Hkv = " << s.Hkv << ", Nq = " << s.Nq
             << ", Nk = " << s.Nk << ", d = " << s.d;
}

// body(Nq, Nk) for every pair of these.
template <class Body>
void each_size(std::initializer_list<Index> all_Nq, std::initializer_list<Index> all_Nk,
               const Body& body) {
  for (const Index Nq : all_Nq) {
    for (const Index Nk : all_Nk) {
      CAPTURE(Nq);
      CAPTURE(Nk);
      body(Nq, Nk);
    }
  }
}

}  // namespace flash_steps::test

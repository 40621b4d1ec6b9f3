// Wrong versions of chapter 09, which its executable shows and its tests pin down. In float64,
// so that rounding is not to blame.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flash_steps::wrong {

// A part as a walk leaves it: one channel of o, not divided by l.
struct RunningPart {
  double m, l, o;
};

// Merged as atomics can: the maximum of the m, the sums of the l and the o (docs/errata.md,
// E39). Each operation is undivided, and yet l and o are relative to the m of their own parts.
inline double merge_atomically(const std::vector<RunningPart>& parts) {
  double m = -std::numeric_limits<double>::infinity(), l = 0, o = 0;
  for (const RunningPart& part : parts) {
    m = std::max(m, part.m);  // atomicMax
    l += part.l;              // atomicAdd: wrong unless part.m is the largest
    o += part.o;
  }
  return o / l;
}

// A part as a split stores it: one channel of o, divided by l.
struct FinishedPart {
  double o, lse;
};

// The average of the outputs, as if all parts weighed the same.
inline double merge_by_average(const std::vector<FinishedPart>& parts) {
  double o = 0;
  for (const FinishedPart& part : parts) o += part.o;
  return o / static_cast<double>(parts.size());
}

// The merge by natural logarithms, given LSEs of base 2.
inline double merge_base_2(const std::vector<FinishedPart>& parts) {
  double l = 0, o = 0;
  for (const FinishedPart& part : parts) {
    const double weight = std::exp(part.lse / std::log(2.0));  // wrong: exp2 undoes log2
    l += weight;
    o += weight * part.o;
  }
  return o / l;
}

}  // namespace flash_steps::wrong

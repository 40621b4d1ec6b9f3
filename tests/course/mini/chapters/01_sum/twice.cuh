#pragma once
inline double twice(double x) {
  // [begin 01.twice-cuda]
  x *= 2;
  // [end]
  return x;
}
inline void raw() {
  // [begin 01.raw-cuda]
  // nothing
  (void)0;
  // [end]
}

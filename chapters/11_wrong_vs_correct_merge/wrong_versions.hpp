// Two listings of chapter 11 that its executable shows and its tests pin down. In float64, so
// that rounding is not to blame. (The three wrong rules are in merge_parts.cpp.)
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flash_steps::wrong {

struct Block {
  double m, l;
  std::vector<double> o;
};

// The first block's maximum throughout, presented as wrong (docs/errata.md, E19): it is exact
// until exp overflows. What is wrong is that o is the first block's own array, as after
// `o = blocks[0]['o']` in Python: it is overwritten (E47).
inline std::vector<double> stale_merge(std::vector<Block>& blocks) {
  const double m = blocks[0].m;
  double l = blocks[0].l;
  std::vector<double>& o = blocks[0].o;  // wrong: not a copy
  for (std::size_t b = 1; b < blocks.size(); ++b) {
    const double factor = std::exp(blocks[b].m - m);
    l += blocks[b].l * factor;
    for (std::size_t c = 0; c < o.size(); ++c) o[c] += blocks[b].o[c] * factor;
  }
  std::vector<double> result = o;
  for (double& value : result) value /= l;
  return result;
}

// The right rule without a thought for empty blocks: (-inf) - (-inf) where the first ones are
// (E6).
inline std::vector<double> unguarded_merge(const std::vector<Block>& blocks) {
  double m = -std::numeric_limits<double>::infinity(), l = 0;
  std::vector<double> o(blocks[0].o.size(), 0.0);
  for (const Block& block : blocks) {
    const double m_new = std::max(m, block.m);
    const double alpha = std::exp(m - m_new), beta = std::exp(block.m - m_new);
    l = l * alpha + block.l * beta;
    for (std::size_t c = 0; c < o.size(); ++c) o[c] = o[c] * alpha + block.o[c] * beta;
    m = m_new;
  }
  for (double& value : o) value /= l;
  return o;
}

}  // namespace flash_steps::wrong

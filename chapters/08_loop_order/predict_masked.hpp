// Chapter 08: what the two orders of the loops move, with a causal mask or without one. No
// Eigen: nvcc may read this file too.
#pragma once

#include "chapters/02_io_counting/predict.hpp"

namespace flash_steps {

// q_outer: a Q tile stays on chip while the K/V tiles pass. kv_outer: the other way round.
enum class LoopOrder { q_outer, kv_outer };

// The elements that an order moves for Q (Nq, d), K and V (Nk, d) if it skips hidden tiles.
// Without a mask these are chapter 02's predict_q_outer and predict_kv_outer; a causal mask
// leaves out of them what belongs to hidden tiles. Throws std::invalid_argument as those do.
Counts predict_loop_order(LoopOrder order, std::int64_t Nq, std::int64_t Nk, std::int64_t d,
                          Tiling tile, bool causal);

}  // namespace flash_steps

// Chapter 09: attention of a few queries to a long cache, with the keys split, on the CPU.
//
//   split s: o_s   = softmax(scale * q K_s^T) V_s    (d)   of each query row q, for its keys
//            LSE_s = ln sum_j exp(scale * q k_j)           alone; natural logarithm
//   merge:   LSE   = ln sum_s exp(LSE_s)
//            O     = sum_s exp(LSE_s - LSE) o_s      (d)
//
// Scores exist for one (Br, Bc) tile at a time. [n] marks, within one split, line n of
// Algorithm 1 in FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// O = softmax(scale * Q K^T) V for every head, where H / Hkv query heads share a KV head: query
// head h attends to KV head h / (H / Hkv). If causal, query i sees the keys j <= i + Nk - Nq.
//
// Q [B, H, Nq, d], K and V [B, Hkv, Nk, d] -> O [B, H, Nq, d], LSE (B * H, Nq), that of (b, h)
// in row b * H + h; T = float or double. Meant for Nq from 1 to 8, but any sizes from 0 on are
// right; 1 <= d <= 256, Hkv divides H. A row that sees no key has O = 0, LSE = -inf; a row with
// NaN in a visible score has NaN in both. The number of splits and the way to merge change
// results by rounding only, and the same ones give the same bits again; without a number of
// splits it depends on the machine. Scratch: splits * B * H * Nq * (d + 1) numbers. Throws
// std::invalid_argument for shapes that do not fit, Br or Bc < 1, a number of splits out of
// range, or a scale not finite in T.
template <class T>
void flash_decoding_cpu(HeadsView<const T> Q, HeadsView<const T> K, HeadsView<const T> V,
                        HeadsView<T> O, MatrixOut<T> LSE, const DecodingOptions& options = {});

// How many splits that call makes: what is asked for, or enough for this machine's threads.
std::int64_t flash_decoding_splits_cpu(const DecodingSizes& sizes,
                                       const DecodingOptions& options);

}  // namespace flash_steps

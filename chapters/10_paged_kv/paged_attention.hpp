// Chapter 10: attention to a cache that lies in blocks, on the CPU.
//
//   K_b, V_b (seq_lens[b], d)   keys and values of sequence b and one KV head: token j is row
//                               j % block_size of block ids[b, j / block_size] of the pool
//   O = softmax(scale * Q K_b^T) V_b    (Nq, d)   for each query head
//
// K_b and V_b never exist as matrices: a tile of Bc rows is gathered from the blocks that hold
// them. Everything else is chapter 09's. [n] marks, within one split, line n of Algorithm 1 in
// FlashAttention-2 (Dao 2023, arXiv:2307.08691).
#pragma once

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "chapters/10_paged_kv/block_table.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/view.hpp"

namespace flash_steps {

// Q [B, H, Nq, d] -> O [B, H, Nq, d], LSE (B * H, Nq), that of (b, h) in row b * H + h; T =
// float or double. `pool` is the cache [2, blocks, Hkv, block_size, d] as a batch of 2 * blocks
// blocks, those of the keys first, in any layout; query head h attends to KV head h / (H /
// Hkv). Sequence b has Nk = seq_lens[b] tokens, those of Q included if they are new; if causal,
// query i sees its keys j <= i + Nk - Nq.
//
// One query is decoding, many are a prefill; any sizes from 0 on are right, block_size >= 1, 1
// <= d <= 256, Hkv divides H. A row that sees no key, as in a sequence of length 0, has O = 0,
// LSE = -inf. Slots beyond a sequence's length, blocks that no sequence uses, and entries of
// the table that are not in use are never read, whatever they hold. The same tokens laid out
// contiguously give the same bits in chapter 09, with the same tiles and splits. Each sequence
// is split by its own length; without a number of splits the longest one decides on it.
//
// Throws std::invalid_argument, before anything is computed, for what require_block_table
// refuses, shapes that do not fit, Br or Bc < 1, a number of splits out of range, or a scale
// not finite in T.
template <class T>
void paged_attention_cpu(HeadsView<const T> Q, HeadsView<const T> pool, const BlockTable& table,
                         HeadsView<T> O, MatrixOut<T> LSE, const DecodingOptions& options = {});

}  // namespace flash_steps

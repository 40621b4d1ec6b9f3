// Chapter 10 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "chapters/09_flash_decoding/merge_splits_cuda.hpp"
#include "chapters/10_paged_kv/device_block_table.hpp"
#include "common/device/heads.hpp"

namespace flash_steps {

// The twin of paged_attention_cpu in float32: Q [B, H, Nq, d], the pool [2 * blocks, Hkv,
// block_size, d] -> O [B, H, Nq, d], LSE (B * H, Nq), one block of threads to a split, a KV
// head and up to Br of the query rows that share it. `parts` is scratch memory as in
// flash_decoding_cuda, for flash_decoding_splits_cuda() splits of the longest sequence.
// Asynchronous on a GPU, with `parts`. The table was checked when it was copied to the device;
// besides what the CPU version throws, std::invalid_argument if it was made for another pool,
// for parts of other sizes, or if the tiles do not fit into the device's shared memory.
void paged_attention_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& pool,
                          const DeviceBlockTable& table, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, const DecodingOptions& options = {},
                          DeviceSplitParts* parts = nullptr);

// Bytes of shared memory that a block of threads needs: chapter 03's tiles, and where each row
// of a key tile lies.
std::int64_t paged_shared_bytes(Tiling tile, std::int64_t d);

}  // namespace flash_steps

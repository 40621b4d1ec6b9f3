// Chapter 09 on the device. No Eigen: nvcc and the host compiler both read this file.
#pragma once

#include "chapters/09_flash_decoding/decoding_options.hpp"
#include "chapters/09_flash_decoding/merge_splits_cuda.hpp"
#include "common/device/heads.hpp"

namespace flash_steps {

// The twin of flash_decoding_cpu in float32: Q [B, H, Nq, d], K and V [B, Hkv, Nk, d] -> O [B,
// H, Nq, d], LSE (B * H, Nq), one block to a split, a KV head and up to Br of the query rows
// that share it. `parts` is scratch memory to use, for flash_decoding_splits_cuda() splits and
// B * H * Nq rows; without it each call takes and frees its own, which on a GPU costs more than
// a short decoding. Asynchronous on a GPU, with `parts`. Besides what the CPU version throws,
// std::invalid_argument for parts of other sizes, or if the tiles do not fit into the device's
// shared memory.
void flash_decoding_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                         const DeviceHeads<float>& V, DeviceHeads<float>& O,
                         DeviceMatrix<float>& LSE, const DecodingOptions& options = {},
                         DeviceSplitParts* parts = nullptr);

// How many splits that call makes: what is asked for, or enough for two blocks on each of the
// device's multiprocessors.
std::int64_t flash_decoding_splits_cuda(const DecodingSizes& sizes,
                                        const DecodingOptions& options);

}  // namespace flash_steps

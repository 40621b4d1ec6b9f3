// The ladder: the same forward pass in float32, from the first kernel that one would write to
// one that keeps the arithmetic units busy. Each rung is a file of its own with the same
// interface. No Eigen: nvcc reads this file too.
#pragma once

#include <cstdint>
#include <optional>

#include "common/device/array.hpp"
#include "common/device/heads.hpp"

namespace flash_steps {

inline constexpr std::int64_t kRungs = 3;

// What `rung`, from 1 to kRungs, is called: "one thread per row", ...
const char* rung_name(std::int64_t rung);

// batched_forward_cuda by another kernel: Q [B, H, Nq, d], K, V [B, Hkv, Nk, d] -> O [B, H, Nq,
// d], LSE (B * H, Nq), with its promises for edges, strides, NaN and repeatability. The tiles
// are a rung's own. The kernels are built for d = 64, 128 and 256; for another d the next of
// them runs, with zeros in the channels that do not exist. Asynchronous on a GPU. Throws
// std::invalid_argument for a rung that does not exist, shapes that do not fit, a scale that is
// not finite in float, or more than 2^31 - 1 blocks.
void forward_rung(std::int64_t rung, const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                  const DeviceHeads<float>& V, DeviceHeads<float>& O, DeviceMatrix<float>& LSE,
                  bool causal = false, std::optional<double> scale = {});

// What a rung's launcher gets: shapes that fit, and at least one query.
struct ForwardBatch {
  const DeviceHeads<float>&Q, &K, &V;  // [B, H, Nq, d], [B, Hkv, Nk, d], [B, Hkv, Nk, d]
  DeviceHeads<float>& O;               // [B, H, Nq, d]
  DeviceMatrix<float>& LSE;            // (B * H, Nq)
  std::int64_t offset;                 // query i sees the keys j <= i + offset
  float scale;
};

void rung1_thread_per_row(const ForwardBatch& batch);
void rung2_shared_tiles(const ForwardBatch& batch);
void rung3_register_tiles(const ForwardBatch& batch);

// Calls run.operator()<D>() for the smallest D of the built ones that is at least d <= 256.
template <class Run>
void with_built_d(std::int64_t d, const Run& run) {
  if (d <= 64) return run.template operator()<64>();
  if (d <= 128) return run.template operator()<128>();
  run.template operator()<256>();
}

}  // namespace flash_steps

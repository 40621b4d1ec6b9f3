// Chapter 09: attention of a few queries to a long cache, with the keys split, on the device.
// The equations and the marks [n] are those of flash_decoding.hpp.
#include <algorithm>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/09_flash_decoding/last_block.cuh"
#include "chapters/09_flash_decoding/merge_splits.cuh"
#include "chapters/09_flash_decoding/split_walk.cuh"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kBlocksPerMultiprocessor = 2;  // one computes while the other loads

// What the blocks of a grid have in common. Block x has split x % splits, of the rows x /
// splits.
struct Decoding {
  DecodingSizes sizes;
  HeadsLayout Q_at, K_at, V_at;
  std::int64_t offset;  // of the mask
  int splits, Br, Bc;
  bool by_four;  // rows of K and V begin at multiples of 16 bytes, and are so long
  float scale;
};

// One block: one split of the keys of a KV head, for up to Br of the rows that share it.
__device__ void decode_split(global<const float> Q,   // [B, H, Nq, d]
                             global<const float> K,   // [B, Hkv, Nk, d]
                             global<const float> V,   // [B, Hkv, Nk, d]
                             global<float> o_part,    // (splits * rows, d)
                             global<float> lse_part,  // (splits, rows)
                             const Decoding& in, const TileMemory& tile, std::int64_t s,
                             const BlockRows& at) {
  const std::int64_t rows = in.sizes.rows();
  // [begin 09.split-cuda]
  const KeyRange keys = split_keys(in.sizes.Nk, in.Bc, in.splits, s);
  if (keys.empty()) return store_empty_part(lse_part, s, rows, at);
  start_rows(tile, Q, in.Q_at, in.sizes, at);  // [4] [5]

  const auto load = [&](std::int64_t k_start, int cols) {
    const global<const float> Kj = K + in.K_at.offset(at.b, at.kv, k_start),
                              Vj = V + in.V_at.offset(at.b, at.kv, k_start);
    if (in.by_four) {
      load_rows<float4>(tile.K, Kj, in.K_at.stride_n, cols, tile.d);
      load_rows<float4>(tile.V, Vj, in.V_at.stride_n, cols, tile.d);
    } else {
      load_rows(tile.K, Kj, in.K_at.stride_n, cols, tile.d);
      load_rows(tile.V, Vj, in.V_at.stride_n, cols, tile.d);
    }
  };
  walk_split(tile, at, in.sizes.Nq, keys, in.offset, in.scale, load);
  store_part(o_part, lse_part, s, rows, tile, at);
  // [end]
}

__global__ void flash_decoding_kernel(global<const float> Q, global<const float> K,
                                      global<const float> V, global<float> o_part,
                                      global<float> lse_part, Decoding in) {
  const TileMemory tile(in.Br, in.Bc, static_cast<int>(in.sizes.d));
  const std::int64_t s = blockIdx.x % in.splits, which = blockIdx.x / in.splits;
  const BlockRows at = block_rows(in.sizes, in.Br, which);
  decode_split(Q, K, V, o_part, lse_part, in, tile, s, at);
}

// The same, and no second kernel: of the blocks that share rows, the last one merges.
__global__ void flash_decoding_last_block_kernel(
    global<const float> Q, global<const float> K, global<const float> V, global<float> o_part,
    global<float> lse_part,
    global<std::uint32_t> arrived,      // one for each `which`
    global<float> O, HeadsLayout O_at,  // [B, H, Nq, d]
    global<float> LSE,                  // (B * H * Nq)
    Decoding in) {
  const TileMemory tile(in.Br, in.Bc, static_cast<int>(in.sizes.d));
  const std::int64_t s = blockIdx.x % in.splits, which = blockIdx.x / in.splits;
  const BlockRows at = block_rows(in.sizes, in.Br, which);
  decode_split(Q, K, V, o_part, lse_part, in, tile, s, at);

  merge_if_last(o_part, lse_part, arrived, O, O_at, LSE, in, tile, which, at);
}

void launch_splits(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                   const DeviceHeads<float>& V, DeviceSplitParts& parts, const Decoding& in) {
  const std::int64_t blocks = in.splits * count_block_rows(in.sizes, in.Br);
  launch(flash_decoding_kernel, {blocks, kThreads, tile_shared_bytes({in.Br, in.Bc}, Q.d())}, Q,
         K, V, parts.O, parts.LSE, in);
}

void launch_last_block(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                       const DeviceHeads<float>& V, DeviceHeads<float>& O,
                       DeviceMatrix<float>& LSE, DeviceSplitParts& parts, const Decoding& in) {
  const std::int64_t blocks = in.splits * count_block_rows(in.sizes, in.Br);
  const std::int64_t bytes =
      std::max<std::int64_t>(tile_shared_bytes({in.Br, in.Bc}, Q.d()), 4 * in.splits);
  launch(flash_decoding_last_block_kernel, {blocks, kThreads, bytes}, Q, K, V, parts.O,
         parts.LSE, parts.arrived, O, O.layout(), LSE, in);
}

}  // namespace

std::int64_t flash_decoding_splits_cuda(const DecodingSizes& sizes,
                                        const DecodingOptions& options) {
  return decoding_splits(sizes, options,
                         kBlocksPerMultiprocessor * device_limits().multiprocessors);
}

void flash_decoding_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                         const DeviceHeads<float>& V, DeviceHeads<float>& O,
                         DeviceMatrix<float>& LSE, const DecodingOptions& options,
                         DeviceSplitParts* parts) {
  const DecodingSizes sizes =
      require_decoding_shapes(Q.layout(), K.layout(), V.layout(), O.layout(), shape_of(LSE));
  const Tiling tile = decoding_tile(sizes, options.tile);
  const std::int64_t splits = flash_decoding_splits_cuda(sizes, options);
  const float scale = resolve_scale<float>(options.scale, sizes.d);
  require_tile_fits(tile, sizes.d);
  std::optional<DeviceSplitParts> own;
  if (parts == nullptr) parts = &own.emplace(splits, sizes.rows(), sizes.d);
  require_shape("the parts' LSE", shape_of(parts->LSE), {splits, sizes.rows()});
  require_shape("the parts' O", shape_of(parts->O), {splits * sizes.rows(), sizes.d});
  if (sizes.rows() == 0) return;

  const Decoding in{sizes,
                    Q.layout(),
                    K.layout(),
                    V.layout(),
                    mask_offset(sizes.Nq, sizes.Nk, options.causal),
                    static_cast<int>(splits),
                    static_cast<int>(tile.Br),
                    static_cast<int>(tile.Bc),
                    rows_of_16_bytes(K.layout()) && rows_of_16_bytes(V.layout()),
                    scale};
  if (options.merge == Merge::last_block) {
    return launch_last_block(Q, K, V, O, LSE, *parts, in);
  }
  launch_splits(Q, K, V, *parts, in);
  merge_splits_cuda(*parts, O, LSE, options.merge);
}

}  // namespace flash_steps

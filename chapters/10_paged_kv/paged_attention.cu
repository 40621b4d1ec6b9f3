// Chapter 10: attention to a cache that lies in blocks, on the device. The equations and the
// marks [n] are those of paged_attention.hpp.
#include <algorithm>
#include <optional>
#include <string>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/09_flash_decoding/last_block.cuh"
#include "chapters/09_flash_decoding/split_walk.cuh"
#include "chapters/10_paged_kv/paged_attention_cuda.hpp"
#include "chapters/10_paged_kv/paged_shapes.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

constexpr int kThreads = 128;

// What the blocks of threads of a grid have in common. Block x has split x % splits, of the
// rows x / splits.
struct Paged {
  DecodingSizes sizes;
  HeadsLayout Q_at, pool_at;
  std::int64_t max_blocks;  // entries of a row of the table
  bool causal, by_four;     // by_four: rows begin at multiples of 16 bytes, and are so long
  int splits, Br, Bc;
  float scale;
};

// The on-chip memory of one block of threads: chapter 03's, and what paging adds.
struct PagedMemory {
  __device__ PagedMemory(int Br, int Bc, int d, dynamic_shared smem = {})
      : length(smem.take<std::int64_t>(1)),
        row_at(smem.take<std::int64_t>(Bc)),
        tile(Br, Bc, d, smem) {}

  shared<std::int64_t> length;  // (1)   tokens of the sequence
  shared<std::int64_t> row_at;  // (Bc)  where the keys of a tile begin in the pool
  TileMemory tile;
};

// row_at[c] = where key k_start + c of a sequence begins in the pool, c = 0 .. cols - 1. `ids`
// is the sequence's row of the table: a thread to an entry, which is read once for all its
// keys.
__device__ void find_rows(shared<std::int64_t> row_at, global<const std::int32_t> ids,
                          const HeadsLayout& pool_at, std::int64_t kv, std::int64_t k_start,
                          int cols) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t block_size = pool_at.N, k_end = k_start + cols;
  // [begin 10.find-rows-cuda]
  for (std::int64_t entry = k_start / block_size + thread; entry * block_size < k_end;
       entry += threads) {
    const std::int64_t block = pool_at.offset(ids[entry], kv, 0);
    const std::int64_t first = entry * block_size;  // the block's first key
    const std::int64_t end = std::min(first + block_size, k_end);
    for (std::int64_t j = std::max(first, k_start); j < end; ++j) {
      row_at[j - k_start] = block + (j - first) * pool_at.stride_n;
    }
  }
  // [end]
}

// to (rows, d) = the rows of the pool that begin at row_at[0], row_at[1], ..., in pieces of one
// float or of four. A barrier must stand before they are read.
template <class Piece>
__device__ void copy_rows(shared<float> to, global<const float> from,
                          shared<std::int64_t> row_at, int rows, int d) {
  constexpr int kFloats = sizeof(Piece) / sizeof(float);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const shared<Piece> to_pieces = as<Piece>(to);
  const global<const Piece> from_pieces = as<const Piece>(from);
  const int pieces = d / kFloats;  // of a row
  // [begin 10.copy-rows-cuda]
  for (int e = thread; e < rows * pieces; e += threads) {
    to_pieces[e] = from_pieces[row_at[e / pieces] / kFloats + e % pieces];
  }
  // [end]
}

// One block of threads: one split of the keys of a KV head, for up to Br of the rows that share
// it.
__device__ void decode_split(global<const float> Q,                // [B, H, Nq, d]
                             global<const float> pool,             // [2 blocks, Hkv, size, d]
                             global<const std::int32_t> ids,       // (B, max_blocks)
                             global<const std::int64_t> seq_lens,  // (B)
                             global<float> o_part,                 // (splits * rows, d)
                             global<float> lse_part,               // (splits, rows)
                             const Paged& in, const PagedMemory& memory, std::int64_t s,
                             const BlockRows& at) {
  const TileMemory& tile = memory.tile;
  const std::int64_t rows = in.sizes.rows(), Nq = in.sizes.Nq;
  if (threadIdx.x == 0) memory.length[0] = seq_lens[at.b];
  __syncthreads();  // the length is there
  // [begin 10.split-cuda]
  const std::int64_t Nk = memory.length[0];
  const std::int64_t offset = mask_offset(Nq, Nk, in.causal);  // each sequence has its own
  const KeyRange keys = seen_keys(split_keys(Nk, in.Bc, in.splits, s), at, Nq, in.Bc, offset);
  if (keys.empty()) return store_empty_part(lse_part, s, rows, at);
  start_rows(tile, Q, in.Q_at, in.sizes, at);  // [4] [5]

  const global<const float> K = pool, V = pool + in.pool_at.B / 2 * in.pool_at.stride_b;
  const auto load = [&](std::int64_t k_start, int cols) {
    find_rows(memory.row_at, ids + at.b * in.max_blocks, in.pool_at, at.kv, k_start, cols);
    __syncthreads();  // all threads know where the rows are
    if (in.by_four) {
      copy_rows<float4>(tile.K, K, memory.row_at, cols, tile.d);
      copy_rows<float4>(tile.V, V, memory.row_at, cols, tile.d);
    } else {
      copy_rows<float>(tile.K, K, memory.row_at, cols, tile.d);
      copy_rows<float>(tile.V, V, memory.row_at, cols, tile.d);
    }
  };
  walk_split(tile, at, Nq, keys, offset, in.scale, load);
  store_part(o_part, lse_part, s, rows, tile, at);
  // [end]
}

__global__ void paged_attention_kernel(global<const float> Q, global<const float> pool,
                                       global<const std::int32_t> ids,
                                       global<const std::int64_t> seq_lens,
                                       global<float> o_part, global<float> lse_part, Paged in) {
  const PagedMemory memory(in.Br, in.Bc, static_cast<int>(in.sizes.d));
  const std::int64_t s = blockIdx.x % in.splits, which = blockIdx.x / in.splits;
  const BlockRows at = block_rows(in.sizes, in.Br, which);
  decode_split(Q, pool, ids, seq_lens, o_part, lse_part, in, memory, s, at);
}

// The same, and no second kernel: of the blocks that share rows, the last one merges.
__global__ void paged_attention_last_block_kernel(
    global<const float> Q, global<const float> pool, global<const std::int32_t> ids,
    global<const std::int64_t> seq_lens, global<float> o_part, global<float> lse_part,
    global<std::uint32_t> arrived, global<float> O, HeadsLayout O_at, global<float> LSE,
    Paged in) {
  const PagedMemory memory(in.Br, in.Bc, static_cast<int>(in.sizes.d));
  const std::int64_t s = blockIdx.x % in.splits, which = blockIdx.x / in.splits;
  const BlockRows at = block_rows(in.sizes, in.Br, which);
  decode_split(Q, pool, ids, seq_lens, o_part, lse_part, in, memory, s, at);
  merge_if_last(o_part, lse_part, arrived, O, O_at, LSE, in, memory.tile, which, at);
}

void launch_splits(const DeviceHeads<float>& Q, const DeviceHeads<float>& pool,
                   const DeviceBlockTable& table, DeviceSplitParts& parts, const Paged& in) {
  const std::int64_t blocks = in.splits * count_block_rows(in.sizes, in.Br);
  launch(paged_attention_kernel, {blocks, kThreads, paged_shared_bytes({in.Br, in.Bc}, Q.d())},
         Q, pool, table.ids(), table.seq_lens(), parts.O, parts.LSE, in);
}

void launch_last_block(const DeviceHeads<float>& Q, const DeviceHeads<float>& pool,
                       const DeviceBlockTable& table, DeviceHeads<float>& O,
                       DeviceMatrix<float>& LSE, DeviceSplitParts& parts, const Paged& in) {
  const std::int64_t blocks = in.splits * count_block_rows(in.sizes, in.Br);
  const std::int64_t bytes =
      std::max<std::int64_t>(paged_shared_bytes({in.Br, in.Bc}, Q.d()), 4 * in.splits);
  launch(paged_attention_last_block_kernel, {blocks, kThreads, bytes}, Q, pool, table.ids(),
         table.seq_lens(), parts.O, parts.LSE, parts.arrived, O, O.layout(), LSE, in);
}

void require_pool_of_table(const DeviceHeads<float>& pool, const DeviceBlockTable& table) {
  if (pool.B() == 2 * table.blocks() && pool.N() == table.block_size()) return;
  require(false, "the block table was made for a pool of " + std::to_string(table.blocks()) +
                     " blocks of " + std::to_string(table.block_size()) + " tokens, found " +
                     std::to_string(pool.B() / 2) + " of " + std::to_string(pool.N()));
}

}  // namespace

std::int64_t paged_shared_bytes(Tiling tile, std::int64_t d) {
  return 16 + shared_floats(2 * tile.Bc) + tile_shared_bytes(tile, d);
}

void paged_attention_cuda(const DeviceHeads<float>& Q, const DeviceHeads<float>& pool,
                          const DeviceBlockTable& table, DeviceHeads<float>& O,
                          DeviceMatrix<float>& LSE, const DecodingOptions& options,
                          DeviceSplitParts* parts) {
  require_pool_of_table(pool, table);
  const DecodingSizes sizes = require_paged_shapes(Q.layout(), pool.layout(), O.layout(),
                                                   shape_of(LSE), table.B(), table.longest());
  const Tiling tile = decoding_tile(sizes, options.tile);
  const std::int64_t splits = flash_decoding_splits_cuda(sizes, options);
  const float scale = resolve_scale<float>(options.scale, sizes.d);
  require_tile_fits(tile, sizes.d);  // chapter 09's own message, if even those do not fit
  require_shared_bytes("tiles", tile, sizes.d, paged_shared_bytes,
                       ", and where their rows lie,");
  std::optional<DeviceSplitParts> own;
  if (parts == nullptr) parts = &own.emplace(splits, sizes.rows(), sizes.d);
  require_shape("the parts' LSE", shape_of(parts->LSE), {splits, sizes.rows()});
  require_shape("the parts' O", shape_of(parts->O), {splits * sizes.rows(), sizes.d});
  if (sizes.rows() == 0) return;

  const Paged in{sizes,
                 Q.layout(),
                 pool.layout(),
                 table.max_blocks(),
                 options.causal,
                 rows_of_16_bytes(pool.layout()),
                 static_cast<int>(splits),
                 static_cast<int>(tile.Br),
                 static_cast<int>(tile.Bc),
                 scale};
  if (options.merge == Merge::last_block) {
    return launch_last_block(Q, pool, table, O, LSE, *parts, in);
  }
  launch_splits(Q, pool, table, *parts, in);
  merge_splits_cuda(*parts, O, LSE, options.merge);
}

}  // namespace flash_steps

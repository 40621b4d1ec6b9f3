#include "chapters/09_flash_decoding/decoding_options.hpp"

#include <algorithm>
#include <string>

#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

std::string sizes_text(std::int64_t B, std::int64_t H, std::int64_t N, std::int64_t d) {
  return "[" + std::to_string(B) + ", " + std::to_string(H) + ", " + std::to_string(N) + ", " +
         std::to_string(d) + "]";
}

void require_sizes(const char* name, const HeadsLayout& found, std::int64_t B, std::int64_t H,
                   std::int64_t N, std::int64_t d) {
  if (found.B == B && found.H == H && found.N == N && found.d == d) return;
  require(false, std::string(name) + " must be " + sizes_text(B, H, N, d) + ", found " +
                     sizes_text(found.B, found.H, found.N, found.d));
}

}  // namespace

const char* merge_name(Merge merge) {
  return merge == Merge::sequential ? "sequential"
         : merge == Merge::tree     ? "tree"
                                    : "last_block";
}

Merge merge_named(const std::string& name) {
  for (const Merge merge : {Merge::sequential, Merge::tree, Merge::last_block}) {
    if (name == merge_name(merge)) return merge;
  }
  throw std::invalid_argument("there is no merge '" + name + "'");
}

DecodingSizes require_decoding_shapes(const HeadsLayout& Q, const HeadsLayout& K,
                                      const HeadsLayout& V, const HeadsLayout& O, Shape LSE) {
  if (Q.d < 1 || Q.d > 256) {
    require(false, "the head dimension d must be from 1 to 256, found " + std::to_string(Q.d));
  }
  require_sizes("K", K, Q.B, K.H, K.N, Q.d);
  require_sizes("V", V, Q.B, K.H, K.N, Q.d);
  require_sizes("O", O, Q.B, Q.H, Q.N, Q.d);
  require_shape("LSE", LSE, {Q.B * Q.H, Q.N});
  if (K.H == 0 ? Q.H != 0 : Q.H % K.H != 0) {
    require(false, "the number of KV heads must divide the number of heads, found " +
                       std::to_string(K.H) + " for " + std::to_string(Q.H));
  }
  return {Q.B, Q.H, K.H, Q.N, K.N, Q.d};
}

Tiling decoding_tile(const DecodingSizes& sizes, Tiling tile) {
  require_tiling(tile);
  return {std::clamp<std::int64_t>(tile.Br, 1, std::max<std::int64_t>(1, sizes.group_rows())),
          std::clamp<std::int64_t>(tile.Bc, 1, std::max<std::int64_t>(1, sizes.Nk))};
}

std::int64_t decoding_splits(const DecodingSizes& sizes, const DecodingOptions& options,
                             std::int64_t slots) {
  const Tiling tile = decoding_tile(sizes, options.tile);
  const std::int64_t splits =
      options.splits ? *options.splits : choose_splits(sizes, tile, slots);
  require_splits(splits);
  return splits;
}

}  // namespace flash_steps

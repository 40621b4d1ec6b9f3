#include "chapters/07_cuda_kernel/rungs/rungs.hpp"

#include <array>
#include <string>

#include "chapters/04_causal_skipping/causal_tiles.hpp"
#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "common/tensor/scale.hpp"

namespace flash_steps {
namespace {

struct Rung {
  const char* name;
  void (*launch)(const ForwardBatch& batch);
};

constexpr std::array<Rung, kRungs> kLadder{{
    {"one thread per row", rung1_thread_per_row},
    {"tiles in shared memory", rung2_shared_tiles},
    {"tiles in registers", rung3_register_tiles},
}};

const Rung& find_rung(std::int64_t rung) {
  if (rung < 1 || rung > kRungs) {
    require(false, "the rung must be from 1 to " + std::to_string(kRungs) + ", found " +
                       std::to_string(rung));
  }
  return kLadder[static_cast<std::size_t>(rung - 1)];
}

}  // namespace

const char* rung_name(std::int64_t rung) { return find_rung(rung).name; }

void forward_rung(std::int64_t rung, const DeviceHeads<float>& Q, const DeviceHeads<float>& K,
                  const DeviceHeads<float>& V, DeviceHeads<float>& O, DeviceMatrix<float>& LSE,
                  bool causal, std::optional<double> scale) {
  const Rung& chosen = find_rung(rung);
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), batch_shape(O),
                       shape_of(LSE));
  const float s = resolve_scale<float>(scale, Q.d());
  if (LSE.size() == 0) return;
  chosen.launch({Q, K, V, O, LSE, mask_offset(Q.N(), K.N(), causal), s});
}

}  // namespace flash_steps

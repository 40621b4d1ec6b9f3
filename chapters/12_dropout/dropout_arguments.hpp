// What the passes with dropout ask of their arguments. No Eigen: nvcc reads this file too.
#pragma once

#include "chapters/07_cuda_kernel/batch_shapes.hpp"
#include "chapters/12_dropout/dropout_mask.hpp"

namespace flash_steps {

// All but tile and scale: mask is null if none is stored, else it must be [B, H, Nq, Nk].
// Throws std::invalid_argument as require_dropout and require_batch_shapes do.
template <class Heads, class MaskHeads>
void require_dropout_arguments(const Heads& Q, const Heads& K, const Heads& V, BatchShape O,
                               Shape LSE, const Dropout& dropout, const MaskHeads* mask) {
  require_dropout(dropout, Q.B(), Q.H(), Q.N(), K.N());
  require_batch_shapes(batch_shape(Q), batch_shape(K), batch_shape(V), O, LSE);
  if (mask) {
    require_batch_shape("the mask", batch_shape(*mask), {Q.B(), Q.H(), Q.N(), K.N()});
  }
}

}  // namespace flash_steps

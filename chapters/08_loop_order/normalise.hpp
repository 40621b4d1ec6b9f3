// When O is divided by l. No Eigen: nvcc reads this file too.
#pragma once

namespace flash_steps {

// every_tile: O in memory is always the attention over the keys so far, as in FlashAttention.
// once: O is a plain sum until its last K/V tile has passed, as in FlashAttention-2.
enum class Normalise { every_tile, once };

}  // namespace flash_steps

// One fold on the device, with any visible counts: the chapter's own walk never varies them.
#pragma once

#include "common/device/array.hpp"

namespace flash_steps::test {

// Folds the tile K, V (cols, d) into the empty state of the queries Q (rows, d), row r seeing
// its first visible[r] keys, and stores O (rows, d) divided by l, m (rows) and l (rows).
void fold_one_tile_cuda(const DeviceMatrix<float>& Q, const DeviceMatrix<float>& K,
                        const DeviceMatrix<float>& V, const DeviceArray<int>& visible,
                        DeviceMatrix<float>& O, DeviceArray<float>& m, DeviceArray<float>& l,
                        float scale);

}  // namespace flash_steps::test

#include "chapters/10_paged_kv/append_token.hpp"

#include "chapters/10_paged_kv/paged_shapes.hpp"

namespace flash_steps {

template <class T>
void append_token_cpu(HeadsView<T> pool, PagedCache& cache, Index b, MatrixIn<T> k,
                      MatrixIn<T> v) {
  require_token_shapes(pool.layout(), cache, shape_of(k), shape_of(v));
  const NewSlot at = cache.append(b);
  // [begin 10.append-token]
  for (const Index first : {Index{0}, cache.blocks()}) {  // of the keys' blocks, of the values'
    for (Index kv = 0; kv < pool.H(); ++kv) {
      auto block = pool.head(first + at.block, kv);
      if (at.copy_from >= 0) {
        block.topRows(at.slot) = pool.head(first + at.copy_from, kv).topRows(at.slot);
      }
      block.row(at.slot) = (first == 0 ? k : v).row(kv);
    }
  }
  // [end]
}

template void append_token_cpu<float>(HeadsView<float>, PagedCache&, Index, MatrixIn<float>,
                                      MatrixIn<float>);
template void append_token_cpu<double>(HeadsView<double>, PagedCache&, Index, MatrixIn<double>,
                                       MatrixIn<double>);

}  // namespace flash_steps

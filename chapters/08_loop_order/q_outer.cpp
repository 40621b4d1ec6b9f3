#include "chapters/08_loop_order/q_outer.hpp"

#include <algorithm>
#include <vector>

#include "chapters/02_io_counting/counted_matrix.hpp"
#include "chapters/04_causal_skipping/causal_forward.hpp"
#include "chapters/08_loop_order/sizes.hpp"
#include "common/tensor/ceil_div.hpp"
#include "common/tensor/parallel_for.hpp"
#include "common/tensor/scale.hpp"
#include "common/tensor/shapes.hpp"

namespace flash_steps {
namespace {

// Chapter 04's walk takes K and V tile by tile: the observer sees each tile pass.
template <class T>
class CountTiles : public TileObserver<T> {
 public:
  explicit CountTiles(std::int64_t& reads) : reads_(reads) {}
  void on_tile(const FoldedTile<T>& tile) override {
    reads_ += 2 * tile.S.cols() * tile.state.O.cols();  // K_j and V_j
  }

 private:
  std::int64_t& reads_;
};

}  // namespace

template <class T>
Counts q_outer_cpu(MatrixIn<T> Q, MatrixIn<T> K, MatrixIn<T> V, MatrixOut<T> O,
                   VectorOut<T> LSE, Tiling tile, bool causal, std::optional<double> scale) {
  require_attention_shapes(shape_of(Q), shape_of(K), shape_of(V), shape_of(O));
  require_size("LSE", LSE.size(), Q.rows());
  require_tiling(tile);
  const T s = resolve_scale<T>(scale, Q.cols());
  const Index Nq = Q.rows(), d = Q.cols(), Tr = ceil_div(Nq, tile.Br);
  const Index offset = mask_offset(Nq, K.rows(), causal);
  std::vector<Counts> counts(static_cast<std::size_t>(Tr));  // turns side by side count apart

  parallel_for(Tr, true, [&](Index i) {
    Counts& c = counts[static_cast<std::size_t>(i)];
    const CountedMatrix<const T> hbm_Q(Q, c.reads, c.writes);
    const CountedMatrix<T> hbm_O(O, c.reads, c.writes),
        hbm_LSE(LSE, c.statistics_reads, c.statistics_writes);
    CountTiles<T> passing(c.reads);

    // [begin 08.q-outer]
    // [3] this Q tile is nobody else's: in parallel, without a word to the others
    const Index q_start = i * tile.Br, rows = std::min(tile.Br, Nq - q_start);
    const Matrix<T> Qi = hbm_Q.load(q_start, 0, rows, d);  // [4]
    const TileState<T> state = causal_q_tile<T>(Qi, K, V, q_start, tile.Bc, offset, s,
                                                Visit::skip_hidden, &passing);  // [5]-[12]
    const Vector<T> LSEi = state.m.array() + state.l.array().log();             // [13]
    hbm_O.store(q_start, 0, state.O);                                           // [14]
    hbm_LSE.store(q_start, 0, LSEi);                                            // [15]
    // [end]
  });
  return sum(counts);
}

template Counts q_outer_cpu<float>(MatrixIn<float>, MatrixIn<float>, MatrixIn<float>,
                                   MatrixOut<float>, VectorOut<float>, Tiling, bool,
                                   std::optional<double>);
template Counts q_outer_cpu<double>(MatrixIn<double>, MatrixIn<double>, MatrixIn<double>,
                                    MatrixOut<double>, VectorOut<double>, Tiling, bool,
                                    std::optional<double>);

}  // namespace flash_steps

// Chapter 03: the tiled forward pass against naive attention in float64.
#include "chapters/03_tiled_forward/tiled_forward.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "chapters/03_tiled_forward/tiled_forward_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/reference/attention.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/skip.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

using Forward =
    std::function<Matrix<float>(const Matrix<float>&, const Matrix<float>&,
                                const Matrix<float>&, Tiling, std::optional<double>)>;

Matrix<float> on_cpu(const Matrix<float>& Q, const Matrix<float>& K, const Matrix<float>& V,
                     Tiling tile, std::optional<double> scale) {
  Matrix<float> O = Matrix<float>::Constant(Q.rows(), Q.cols(), NAN);
  tiled_forward_cpu<float>(Q, K, V, O, tile, scale);
  return O;
}

Matrix<float> on_device(const Matrix<float>& Q, const Matrix<float>& K, const Matrix<float>& V,
                        Tiling tile, std::optional<double> scale) {
  DeviceMatrix<float> O(Q.rows(), Q.cols());
  tiled_forward_cuda(to_device(Q), to_device(K), to_device(V), O, tile, scale);
  return to_host(O);
}

void check_sizes(const Forward& forward) {
  for (const Index d : {1, 3, 20}) {
    for (const Index Nq : {0, 1, 3, 4, 5, 9}) {
      for (const Index Nk : {0, 1, 7, 8, 9, 17}) {
        CAPTURE(d);
        CAPTURE(Nq);
        CAPTURE(Nk);
        const auto Q = random_matrix<float>(Nq, d, 0, 0), K = random_matrix<float>(Nk, d, 0, 1),
                   V = random_matrix<float>(Nk, d, 0, 2);
        const auto expected =
            reference_attention(Q.cast<double>(), K.cast<double>(), V.cast<double>());
        check_close(forward(Q, K, V, {.Br = 4, .Bc = 8}, {}), expected.O, kFloat32);
      }
    }
  }
}

}  // namespace

TEST_CASE("cpu: every ragged size agrees with naive attention") { check_sizes(on_cpu); }
TEST_CASE("device: every ragged size agrees with naive attention") {
  if (!have_device()) return;
  check_sizes(on_device);
}

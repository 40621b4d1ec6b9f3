// common/reference, the oracle: against PyTorch's float64 results in tests/golden, against
// reports of real bugs worked out by hand, and at the edges of the numerical contract.
//
// Names say where a case is from: the kind (K02 = causal alignment, ...) and the public report,
// as project and issue number. Matrices of one column are written as lists. Reports about
// ragged batches, windows, merging, gradients or 16-bit floats are not for this function.
#include "common/reference/attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/tensor/matrix.hpp"
#include "common/tensor/npy.hpp"
#include "common/tensor/npy_matrix.hpp"

using namespace flash_steps;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Float64 rounding in sums of some hundred terms, with two digits to spare.
constexpr double kTolerance = 1e-12;
// Expected values that a report prints with seven digits.
constexpr double kPrinted = 1e-6;

// Distance relative to max(1, |expected|); 0 for equal infinities and where NaN is expected and
// found; +inf for any other NaN or infinity.
double distance(double actual, double expected) {
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0;
  const double difference = std::abs(actual - expected) / std::max(1.0, std::abs(expected));
  return std::isfinite(difference) ? difference : kInfinity;
}

void check_near(const char* what, const Matrix<double>& actual, const Matrix<double>& expected,
                double tolerance = kTolerance) {
  CAPTURE(what);
  REQUIRE(actual.rows() == expected.rows());
  REQUIRE(actual.cols() == expected.cols());
  double worst = 0;
  Index row = 0, col = 0;
  for (Index r = 0; r < expected.rows(); ++r) {
    for (Index c = 0; c < expected.cols(); ++c) {
      const double found = distance(actual(r, c), expected(r, c));
      if (found > worst) worst = found, row = r, col = c;
    }
  }
  INFO("worst at (" << row << ", " << col << "): " << actual(row, col) << ", expected "
                    << expected(row, col) << ", distance " << worst);
  CHECK(worst <= tolerance);
}

Matrix<double> from(const std::vector<double>& values, Index cols) {
  Matrix<double> X(static_cast<Index>(values.size()) / cols, cols);
  for (Index r = 0; r < X.rows(); ++r) {
    for (Index c = 0; c < cols; ++c) X(r, c) = values[static_cast<std::size_t>(r * cols + c)];
  }
  return X;
}

Matrix<double> column(const std::vector<double>& values) { return from(values, 1); }

Matrix<double> constant(Index rows, Index cols, double value) {
  return Matrix<double>::Constant(rows, cols, value);
}

Matrix<double> random_matrix(Index rows, Index cols, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  Matrix<double> X(rows, cols);
  for (Index r = 0; r < rows; ++r) {
    // The top 53 bits as a number in [-2, 2): the same on every platform.
    for (Index c = 0; c < cols; ++c) X(r, c) = std::ldexp(double(bits() >> 11), -51) - 2.0;
  }
  return X;
}

// d = 1 and scale 1, as most reports are reduced to.
ReferenceResult attend(const std::vector<double>& Q, const std::vector<double>& K,
                       const std::vector<double>& V, bool causal = false, double scale = 1.0) {
  return reference_attention(column(Q), column(K), column(V),
                             {.scale = scale, .causal = causal, .keep_P = true});
}

void check_result(const ReferenceResult& result, const std::vector<double>& O,
                  const std::vector<double>& LSE, double tolerance = kTolerance) {
  check_near("O", result.O, column(O), tolerance);
  check_near("LSE", result.LSE, column(LSE), tolerance);
}

constexpr double e = std::numbers::e, ln2 = std::numbers::ln2;
const double ln3 = std::log(3.0), ln4 = std::log(4.0), ln5 = std::log(5.0), ln6 = std::log(6.0);

// ---- goldens --------------------------------------------------------------------------------

using Directory = std::filesystem::path;

std::vector<Directory> cases_in(const char* set) {
  std::vector<Directory> cases;
  for (const auto& entry :
       std::filesystem::directory_iterator(Directory(FLASH_STEPS_GOLDEN_DIR) / set)) {
    if (entry.is_directory()) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// Inputs are float32 files; results, of one dimension or two, float64.
Matrix<double> load_input(const Directory& directory, const char* name) {
  const Directory path = directory / (std::string(name) + ".npy");
  return to_matrix<float>(read_npy(path), path.string()).cast<double>();
}

Matrix<double> load_result(const Directory& directory, const std::string& name) {
  const Directory path = directory / (name + ".npy");
  const NpyArray array = read_npy(path);
  if (array.shape.size() == 1) return to_vector<double>(array, path.string());
  return to_matrix<double>(array, path.string());
}

void check_golden(const Directory& directory) {
  const std::string name = directory.filename().string();
  CAPTURE(name);
  const Matrix<double> Q = load_input(directory, "q");
  const Matrix<double> K = load_input(directory, "k");
  const Matrix<double> V = load_input(directory, "v");
  ReferenceOptions options;
  if (std::filesystem::exists(directory / "scale.npy"))
    options.scale = load_result(directory, "scale")(0, 0);

  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    options.causal = causal;
    const std::string suffix = causal ? "_causal" : "";
    const ReferenceResult result = reference_attention(Q, K, V, options);
    check_near("O", result.O, load_result(directory, "o" + suffix));
    check_near("m", result.m, load_result(directory, "m" + suffix));
    check_near("l", result.l, load_result(directory, "l" + suffix));
    check_near("LSE", result.LSE, load_result(directory, "lse" + suffix));
  }
}

}  // namespace

TEST_CASE("cpu: reference equals the forward goldens of PyTorch in float64") {
  const std::vector<Directory> cases = cases_in("forward");
  REQUIRE(cases.size() >= 11);  // an empty or missing directory is no pass
  for (const Directory& directory : cases) check_golden(directory);
}

TEST_CASE("cpu: reference equals PyTorch on Q K V of a sentence encoder") {
  const std::vector<Directory> cases = cases_in("real");
  REQUIRE(cases.size() >= 24);  // two layers of twelve heads
  for (const Directory& directory : cases) check_golden(directory);
}

// ---- K01: rows without keys, very low scores ------------------------------------------------

TEST_CASE("cpu: reference K01 a row that sees no key has LSE -inf (flashinfer 4452)") {
  const ReferenceResult result = attend({1, 1, 1}, {1}, {5}, true);
  check_result(result, {0, 0, 5}, {-kInfinity, -kInfinity, 1});
  check_near("m", result.m, column({-kInfinity, -kInfinity, 1}));
  check_near("l", result.l, column({0, 0, 1}));
  check_near("P", result.P, column({0, 0, 1}));
}

TEST_CASE("cpu: reference K01 all scores far below zero (flash-attention 2082)") {
  check_result(attend({-200, -200, -200, -200}, {1, 1, 1, 1}, {1, 2, 3, 4}, true),
               {1, 1.5, 2, 2.5}, {-200, -200 + ln2, -200 + ln3, -200 + ln4});
}

TEST_CASE("cpu: reference K01 scores below any finite start value (flashinfer 4267 and 4450)") {
  check_result(attend({-1}, {60000, 60001}, {1, 3}), {(1 + 3 / e) / (1 + 1 / e)},
               {-60000 + std::log1p(1 / e)});
  // The same near the end of float32's range, where the scores are equal in float32.
  check_result(attend({-1}, {3e38, 3e38}, {1, 3}), {2}, {-3e38});
}

TEST_CASE("cpu: reference K01 a hidden key has weight exactly 0 (lattice 361)") {
  const ReferenceResult result = attend({-20000, 0}, {1, 0}, {1, 100}, true);
  check_result(result, {1, 50.5}, {-20000, ln2});
  CHECK(result.P(0, 1) == 0.0);
}

// ---- K02: causal alignment ------------------------------------------------------------------

TEST_CASE("cpu: reference K02 causal alignment is bottom-right (flash-attention 282)") {
  check_result(attend({0, 0}, {1, 1, 1, 1, 1}, {0, 1, 2, 3, 4}, true), {1.5, 2}, {ln4, ln5});
}

TEST_CASE("cpu: reference K02 more queries than keys (flash-attention 1778)") {
  check_result(attend({0, 0, 0, 0, 0}, {1, 1}, {1, 3}, true), {0, 0, 0, 1, 2},
               {-kInfinity, -kInfinity, -kInfinity, 0, ln2});
}

TEST_CASE("cpu: reference K02 the diagonal key is visible (flashinfer 348)") {
  check_result(attend({0, 0}, {1, 1, 1}, {1, 2, 4}, true), {1.5, 7.0 / 3}, {ln2, ln3});
}

TEST_CASE("cpu: reference K02 every row of a query tile has its own limit (rocMLIR 2165)") {
  check_result(attend({0, 0, 0, 0}, {1, 1, 1, 1}, {0, 1, 2, 3}, true), {0, 0.5, 1, 1.5},
               {0, ln2, ln3, ln4});
}

TEST_CASE("cpu: reference K02 length difference not a tile multiple (flash-attention 436)") {
  check_result(attend({0, 0, 0, 0}, {1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5}, true),
               {1, 1.5, 2, 2.5}, {ln3, ln4, ln5, ln6});
}

TEST_CASE("cpu: reference K02 the causal flag has an effect (jax 19237)") {
  check_result(attend({0, 0}, {1, 1}, {0, 1}, false), {0.5, 0.5}, {ln2, ln2});
  check_result(attend({0, 0}, {1, 1}, {0, 1}, true), {0, 0.5}, {0, ln2});
}

// ---- K03 to K05: lengths and head dimension -------------------------------------------------

TEST_CASE("cpu: reference K03 no keys gives LSE -inf not +inf (flash-attention 978)") {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    const ReferenceResult result = attend({1, 2}, {}, {}, causal);
    check_result(result, {0, 0}, {-kInfinity, -kInfinity});
    check_near("m", result.m, column({-kInfinity, -kInfinity}));
    check_near("l", result.l, column({0, 0}));
    CHECK(result.P.rows() == 2);
    CHECK(result.P.cols() == 0);
  }
}

TEST_CASE("cpu: reference K03 no queries gives empty results (flash-attention 2503)") {
  for (const Index Nk : {0, 3}) {
    const ReferenceResult result = reference_attention(Matrix<double>(0, 4), constant(Nk, 4, 1),
                                                       constant(Nk, 4, 1), {.keep_P = true});
    CHECK(result.O.rows() == 0);
    CHECK(result.O.cols() == 4);
    CHECK(result.m.size() == 0);
    CHECK(result.l.size() == 0);
    CHECK(result.LSE.size() == 0);
    CHECK(result.P.rows() == 0);
    CHECK(result.P.cols() == Nk);
  }
}

TEST_CASE("cpu: reference K03 head dimension 0 is an argument error (pytorch 174939)") {
  const Matrix<double> Q(2, 0), K(3, 0), none(0, 0);
  CHECK_THROWS_AS(reference_attention(Q, K, K), std::invalid_argument);
  CHECK_THROWS_AS(reference_attention(Q, K, K, {.scale = 1.0}), std::invalid_argument);
  CHECK_THROWS_AS(reference_attention(none, none, none), std::invalid_argument);
}

TEST_CASE("cpu: reference K04 one query and one key (flash-attention-minimal 2)") {
  const Matrix<double> Q = random_matrix(1, 64, 1), K = random_matrix(1, 64, 2),
                       V = random_matrix(1, 64, 3);
  const ReferenceResult result = reference_attention(Q, K, V);
  check_near("O", result.O, V, 0);
  double dot = 0;
  for (Index c = 0; c < 64; ++c) dot += Q(0, c) * K(0, c);
  check_near("LSE", result.LSE, column({dot / 8}));
}

TEST_CASE("cpu: reference K04 the sum has as many terms as keys (flashinfer 3716)") {
  check_result(attend({0}, {1, 1, 1}, {1, 2, 3}), {2}, {ln3});
}

TEST_CASE("cpu: reference K05 all channels count in the score (triton 621)") {
  Matrix<double> K = constant(2, 128, 0), V = constant(2, 128, 10);
  for (Index c = 64; c < 128; ++c) K(0, c) = 1;
  for (Index c = 0; c < 128; ++c) V(1, c) = 20;
  const ReferenceResult result =
      reference_attention(constant(1, 128, 1), K, V, {.scale = 0.125});
  check_near("O", result.O, constant(1, 128, (10 + 20 * std::exp(-8)) / (1 + std::exp(-8))));
  check_near("LSE", result.LSE, column({8 + std::log1p(std::exp(-8))}));
}

TEST_CASE("cpu: reference K05 every channel of O is written (mni-ml framework 39)") {
  for (const Index d : {31, 32, 33, 64, 100, 128}) {
    CAPTURE(d);
    const ReferenceResult result =
        reference_attention(constant(2, d, 0), random_matrix(3, d, 4), constant(3, d, 1));
    check_near("O", result.O, constant(2, d, 1));
  }
}

// ---- K08: LSE, and the forward half of K09 --------------------------------------------------

TEST_CASE("cpu: reference K08 LSE is a natural logarithm (pytorch 181645)") {
  check_result(attend({1}, {0, 1}, {0, 1}), {e / (1 + e)}, {std::log1p(e)});
}

TEST_CASE("cpu: reference K09 forward half of a causal case (flash-attention 443)") {
  check_result(attend({1, 1, 1, 1}, {1, 2}, {1, 3}, true), {0, 0, 1, (1 + 3 * e) / (1 + e)},
               {-kInfinity, -kInfinity, 1, 2 + std::log1p(1 / e)});
}

// ---- K13: NaN and infinity ------------------------------------------------------------------

TEST_CASE("cpu: reference K13 unused rows of a buffer never enter (flash-attention 1745)") {
  for (const double filler : {kNaN, kInfinity, -kInfinity}) {
    CAPTURE(filler);
    const Matrix<double> V = column({1, 3, filler, filler});
    for (const double K_filler : {0.0, filler}) {
      const Matrix<double> K = column({0, 0, K_filler, K_filler});
      check_result(reference_attention(column({1}), K.topRows(2), V.topRows(2)), {2}, {ln2});
    }
  }
}

TEST_CASE("cpu: reference K13 NaN at a hidden key stays hidden (pytorch 101967)") {
  const ReferenceResult result = attend({1, 1}, {1, kNaN}, {3, kNaN}, true);
  check_result(result, {3, kNaN}, {1, kNaN});
  check_near("l", result.l, column({1, kNaN}));
  check_near("P", result.P, from({1, 0, kNaN, kNaN}, 2));
}

TEST_CASE("cpu: reference K13 a NaN query gives a NaN row and no other (lattice 789)") {
  const ReferenceResult result = attend({0, kNaN, 0}, {1, 1}, {1, 3});
  check_result(result, {2, kNaN, 2}, {ln2, kNaN, ln2});
  check_near("l", result.l, column({2, kNaN, 2}));
}

TEST_CASE("cpu: reference NaN in one channel of Q or K reaches all channels of O") {
  const Matrix<double> good = random_matrix(3, 4, 5);
  const ReferenceResult expected = reference_attention(good, good, good, {.causal = true});

  Matrix<double> bad = good;
  bad(1, 2) = kNaN;
  const ReferenceResult bad_q = reference_attention(bad, good, good, {.causal = true});
  const ReferenceResult bad_k = reference_attention(good, bad, good, {.causal = true});
  for (Index i = 0; i < 3; ++i) {
    CAPTURE(i);
    const bool nan_q = i == 1, nan_k = i >= 1;  // key 1 is visible to queries 1 and 2
    check_near("LSE", bad_q.LSE.row(i), constant(1, 1, nan_q ? kNaN : expected.LSE(i)), 0);
    check_near("LSE", bad_k.LSE.row(i), constant(1, 1, nan_k ? kNaN : expected.LSE(i)), 0);
    for (Index c = 0; c < 4; ++c) {
      check_near("O", bad_q.O.block(i, c, 1, 1),
                 constant(1, 1, nan_q ? kNaN : expected.O(i, c)), 0);
      check_near("O", bad_k.O.block(i, c, 1, 1),
                 constant(1, 1, nan_k ? kNaN : expected.O(i, c)), 0);
    }
  }
}

TEST_CASE("cpu: reference NaN in V reaches its channel of the rows that see it") {
  const Matrix<double> Q = random_matrix(3, 2, 6), K = random_matrix(3, 2, 7);
  Matrix<double> V = random_matrix(3, 2, 8);
  const ReferenceResult expected = reference_attention(Q, K, V, {.causal = true});
  V(1, 0) = kNaN;
  const ReferenceResult result = reference_attention(Q, K, V, {.causal = true});
  Matrix<double> O = expected.O;
  O(1, 0) = O(2, 0) = kNaN;
  check_near("O", result.O, O, 0);
  check_near("m", result.m, expected.m, 0);
  check_near("l", result.l, expected.l, 0);
  check_near("LSE", result.LSE, expected.LSE, 0);

  // A weight that underflows to 0 does not hide it: 0 times NaN is NaN.
  check_result(attend({1}, {0, 2000}, {kNaN, 5}), {kNaN}, {2000});
}

TEST_CASE("cpu: reference a NaN score is found wherever it stands in the row") {
  // Beside scores of -inf a maximum that drops NaN would call the row empty.
  for (const std::vector<double>& K : std::vector<std::vector<double>>{
           {kNaN, 1, 2}, {1, kNaN, 2}, {1, 2, kNaN}, {kNaN, kNaN, kNaN}}) {
    check_result(attend({1}, K, {1, 2, 3}), {kNaN}, {kNaN});
  }
  for (const std::vector<double>& K :
       std::vector<std::vector<double>>{{kNaN, -kInfinity}, {-kInfinity, kNaN}}) {
    check_result(attend({1}, K, {1, 2}), {kNaN}, {kNaN});
  }
}

TEST_CASE("cpu: reference a score of +inf makes its row NaN") {
  check_result(attend({1, 0.5}, {1, kInfinity}, {3, 4}, true), {3, kNaN}, {1, kNaN});
  check_result(attend({1e200}, {1e200, 0}, {3, 4}), {kNaN}, {kNaN});  // overflows
}

TEST_CASE("cpu: reference scores of -inf have weight 0 and alone make an empty row") {
  check_result(attend({1}, {-kInfinity, 2}, {3, 4}), {4}, {2});
  check_result(attend({1e200}, {-1e200, 0}, {3, 4}), {4}, {0});  // overflows

  const ReferenceResult result =
      attend({1, 1}, {-kInfinity, -kInfinity}, {kNaN, kInfinity}, false);
  check_result(result, {0, 0}, {-kInfinity, -kInfinity});
  check_near("m", result.m, column({-kInfinity, -kInfinity}));
  check_near("l", result.l, column({0, 0}));
  check_near("P", result.P, constant(2, 2, 0));
}

TEST_CASE("cpu: reference a row that sees no key is empty even if its query is NaN") {
  check_result(attend({kNaN, 1}, {1}, {kNaN}, true), {0, kNaN}, {-kInfinity, 1});
  check_result(attend({kNaN}, {}, {}), {0}, {-kInfinity});
}

// ---- K15: range and scale -------------------------------------------------------------------

TEST_CASE("cpu: reference K15 the exponent of the maximum is exactly 0 (pytorch 121558)") {
  const ReferenceResult result = attend({133120}, {133120}, {1}, false, 0.25);
  check_result(result, {1}, {0.25 * 17720934400.0}, 0);
  CHECK(result.l(0) == 1.0);

  // The same where scale * dot is not exact in float64, so that a product kept exact by a fused
  // multiply-add would show.
  const Matrix<double> Q = random_matrix(1, 1, 9) * 1e9, K = random_matrix(200, 1, 10) * 1e9;
  for (Index j = 0; j < 200; ++j) {
    CAPTURE(j);
    const ReferenceResult one =
        reference_attention(Q, K.middleRows(j, 1), column({1}), {.scale = 0.1});
    REQUIRE(one.l(0) == 1.0);
    REQUIRE(one.O(0, 0) == 1.0);
    REQUIRE(one.LSE(0) == one.m(0));
  }
}

TEST_CASE("cpu: reference K15 large products with a small scale (llama.cpp 7805)") {
  check_result(attend({300}, {300, 299}, {1, 2}, false, 1.0 / 256), {1.236516}, {351.832363},
               kPrinted);
}

TEST_CASE("cpu: reference K15 scale zero and negative under a mask (flash-attention 1461)") {
  check_result(attend({5, 5, 5}, {1, 2, 3}, {3, 6, 9}, true, 0.0), {3, 4.5, 6}, {0, ln2, ln3});
  check_result(attend({1, 1}, {1, 2}, {3, 6}, true, -1.0), {3, (3 + 6 / e) / (1 + 1 / e)},
               {-1, -1 + std::log1p(1 / e)});
}

TEST_CASE("cpu: reference K15 the maximum is taken after scaling (pytorch 105202)") {
  const ReferenceResult result = attend({1, 1}, {1, 2}, {3, 6}, true, -1.0);
  check_result(result, {3, 3.806824}, {-1, -0.686738}, kPrinted);
  check_near("m", result.m, column({-1, -1}), 0);
  // So far apart that the wrong maximum would overflow.
  check_result(attend({1}, {1, 2000}, {3, 6}, false, -1.0), {3}, {-1});
}

TEST_CASE("cpu: reference K15 equal scores far below zero (NNlib.jl 506)") {
  const ReferenceResult result =
      attend({-1}, std::vector<double>(512, 1000), std::vector<double>(512, 7));
  check_result(result, {7}, {-1000 + std::log(512.0)});
  check_near("P", result.P, constant(1, 512, 1.0 / 512));
}

TEST_CASE("cpu: reference the default scale is 1 over the root of d") {
  const ReferenceResult result =
      reference_attention(constant(1, 9, 1), constant(2, 9, 2), constant(2, 9, 1));
  check_near("m", result.m, column({18.0 / 3}));
}

TEST_CASE("cpu: reference a scale that is not finite is an argument error") {
  const Matrix<double> X = constant(2, 2, 1);
  for (const double scale : {kNaN, kInfinity, -kInfinity}) {
    CAPTURE(scale);
    CHECK_THROWS_AS(reference_attention(X, X, X, {.scale = scale}), std::invalid_argument);
  }
}

// ---- K20: worked examples of papers and tutorials -------------------------------------------

TEST_CASE("cpu: reference K20 four scores by hand (flash-attention 2342 and CUDATutorial 69)") {
  const ReferenceResult result = attend({1}, {0, 2, 1, 3}, {1, 2, 3, 4});
  check_result(result, {3.342914}, {3.440190}, kPrinted);
  check_near("m", result.m, column({3}), 0);
  check_near("l", result.l, column({std::exp(-3) + std::exp(-1) + std::exp(-2) + 1}));
}

TEST_CASE("cpu: reference K20 a large score then a small one (tilelang 1148)") {
  check_result(attend({1}, {200, 0}, {1, 2}), {1}, {200});
}

// ---- interface ------------------------------------------------------------------------------

TEST_CASE("cpu: reference P has rows that sum to 1 and zeros where keys are hidden") {
  const Matrix<double> Q = random_matrix(5, 3, 11), K = random_matrix(4, 3, 12),
                       V = random_matrix(4, 3, 13);
  const ReferenceResult result = reference_attention(Q, K, V, {.causal = true, .keep_P = true});
  REQUIRE(result.P.rows() == 5);
  REQUIRE(result.P.cols() == 4);
  for (Index i = 0; i < 5; ++i) {
    double sum = 0;
    for (Index j = 0; j < 4; ++j) {
      CAPTURE(i);
      CAPTURE(j);
      sum += result.P(i, j);
      CHECK((result.P(i, j) > 0) == (j <= i + 4 - 5));
    }
    CHECK(distance(sum, i == 0 ? 0.0 : 1.0) <= kTolerance);
  }
  Matrix<double> PV = constant(5, 3, 0);
  for (Index i = 0; i < 5; ++i) {
    for (Index j = 0; j < 4; ++j) PV.row(i) += result.P(i, j) * V.row(j);
  }
  check_near("P V", PV, result.O);

  const ReferenceResult without = reference_attention(Q, K, V, {.causal = true});
  CHECK(without.P.size() == 0);
  check_near("O", without.O, result.O, 0);
}

TEST_CASE("cpu: reference blocks of larger matrices give the same result") {
  const Matrix<double> big = random_matrix(20, 11, 14);
  const Matrix<double> Q = big.block(1, 2, 3, 5), K = big.block(4, 3, 7, 5),
                       V = big.block(11, 1, 7, 5);
  const ReferenceResult expected = reference_attention(Q, K, V);
  const ReferenceResult result =
      reference_attention(big.block(1, 2, 3, 5), big.block(4, 3, 7, 5), big.block(11, 1, 7, 5));
  check_near("O", result.O, expected.O, 0);
  check_near("LSE", result.LSE, expected.LSE, 0);
}

TEST_CASE("cpu: reference keys and values in another order change nothing but rounding") {
  const Matrix<double> Q = random_matrix(4, 6, 15), K = random_matrix(9, 6, 16),
                       V = random_matrix(9, 6, 17);
  const ReferenceResult expected = reference_attention(Q, K, V);
  const ReferenceResult result =
      reference_attention(Q, K.colwise().reverse(), V.colwise().reverse());
  check_near("O", result.O, expected.O);
  check_near("LSE", result.LSE, expected.LSE);
}

TEST_CASE("cpu: reference adding a number to all scores moves LSE and leaves O") {
  // A channel in which every key holds 40 adds q * 40 to each score of the row.
  Matrix<double> Q = random_matrix(4, 3, 18), K = random_matrix(6, 3, 19);
  const Matrix<double> V = random_matrix(6, 3, 20);
  for (Index j = 0; j < 6; ++j) K(j, 2) = 0;
  const ReferenceResult expected = reference_attention(Q, K, V, {.scale = 1.0});
  for (Index j = 0; j < 6; ++j) K(j, 2) = 40;
  const ReferenceResult result = reference_attention(Q, K, V, {.scale = 1.0});
  check_near("O", result.O, expected.O);
  check_near("LSE", result.LSE, expected.LSE + 40 * Q.col(2));
}

TEST_CASE("cpu: reference shapes that disagree are argument errors") {
  const Matrix<double> Q = constant(2, 4, 1), K = constant(3, 4, 1);
  CHECK_THROWS_AS(reference_attention(Q, constant(3, 5, 1), K), std::invalid_argument);
  CHECK_THROWS_AS(reference_attention(Q, K, constant(3, 5, 1)), std::invalid_argument);
  CHECK_THROWS_AS(reference_attention(Q, K, constant(2, 4, 1)), std::invalid_argument);
  CHECK_THROWS_WITH_AS(reference_attention(Q, K, constant(2, 4, 1)),
                       "V must be (Nk, d) = (3, 4), found (2, 4)", std::invalid_argument);
}

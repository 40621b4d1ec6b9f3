#include "common/tensor/view.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "common/tensor/element_count.hpp"

namespace flash_steps {

namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kSmallest = std::numeric_limits<std::int64_t>::min();

// 0, 1, 2, ...: every element says where it lies.
std::vector<float> counting(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

const float* address(MatrixIn<float> M) { return M.data(); }
void fill(MatrixOut<float> M, float value) { M.setConstant(value); }

// The sum of column c as a function sees it through MatrixIn.
float column_sum(MatrixIn<float> M, Index c) { return M.col(c).sum(); }

struct Shape {
  std::int64_t B, H, N, d;
};

// H == N would hide that the two layouts were exchanged.
constexpr std::array kShapes = {Shape{2, 3, 4, 5}, Shape{2, 3, 3, 2}, Shape{1, 1, 1, 1},
                                Shape{3, 1, 7, 2}, Shape{1, 4, 1, 3}};

}  // namespace

TEST_CASE("cpu: view of contiguous layouts finds every element") {
  for (const Shape& s : kShapes) {
    const std::vector<float> data = counting(s.B * s.H * s.N * s.d);
    const auto bhnd = bhnd_view(data.data(), s.B, s.H, s.N, s.d);
    const auto bnhd = bnhd_view(data.data(), s.B, s.H, s.N, s.d);
    for (std::int64_t b = 0; b < s.B; ++b) {
      for (std::int64_t h = 0; h < s.H; ++h) {
        for (std::int64_t n = 0; n < s.N; ++n) {
          for (std::int64_t c = 0; c < s.d; ++c) {
            const std::int64_t in_bhnd = ((b * s.H + h) * s.N + n) * s.d + c;
            const std::int64_t in_bnhd = ((b * s.N + n) * s.H + h) * s.d + c;
            CHECK(bhnd.head(b, h)(n, c) == static_cast<float>(in_bhnd));
            CHECK(bnhd.head(b, h)(n, c) == static_cast<float>(in_bnhd));
            CHECK(bhnd.layout().offset(b, h, n) + c == in_bhnd);
            CHECK(bnhd.layout().offset(b, h, n) + c == in_bnhd);
          }
        }
      }
    }
  }
}

TEST_CASE("cpu: view keeps the order of its sizes in both layouts") {
  std::vector<float> data(2 * 3 * 4 * 5);
  for (const auto& view :
       {bhnd_view(data.data(), 2, 3, 4, 5), bnhd_view(data.data(), 2, 3, 4, 5)}) {
    CHECK(view.B() == 2);
    CHECK(view.H() == 3);
    CHECK(view.N() == 4);
    CHECK(view.d() == 5);
    CHECK(view.head(1, 2).rows() == 4);
    CHECK(view.head(1, 2).cols() == 5);
    CHECK_FALSE(view.empty());
  }
}

TEST_CASE("cpu: view heads share the memory they are made from") {
  for (const bool tokens_first : {false, true}) {
    CAPTURE(tokens_first);
    std::vector<float> data(2 * 3 * 4 * 5, 0.0f);
    const HeadsView<float> view =
        tokens_first ? bnhd_view(data.data(), 2, 3, 4, 5) : bhnd_view(data.data(), 2, 3, 4, 5);
    const std::vector<float>& memory = data;
    view.head(1, 2)(3, 4) = 7.0f;
    CHECK(memory.back() == 7.0f);  // the last element in both layouts

    // through the argument types too, and nothing beside the head is touched
    fill(view.head(0, 1), 1.0f);
    CHECK(std::accumulate(memory.begin(), memory.end(), 0.0f) == 4 * 5 + 7.0f);
    CHECK(view.head(0, 1).sum() == 20.0f);
    CHECK(address(view.head(0, 1)) == memory.data() + view.layout().offset(0, 1, 0));
    CHECK(address(HeadsView<const float>(view).head(0, 1)) == address(view.head(0, 1)));
  }
}

TEST_CASE("cpu: view of const memory is read-only") {
  using ReadOnly = HeadsView<const float>;
  using Element = decltype(std::declval<ReadOnly::Head>()(0, 0));
  CHECK_FALSE(std::is_assignable_v<Element, float>);
  CHECK(std::is_convertible_v<HeadsView<float>, ReadOnly>);
  CHECK_FALSE(std::is_convertible_v<ReadOnly, HeadsView<float>>);
}

TEST_CASE("cpu: view with strides of its own reads padded and shared memory") {
  const std::vector<float> data = counting(64);
  // rows 10 apart for 4 channels; both batches are the same memory
  const HeadsView<const float> view(data.data(), {2, 2, 3, 4, 0, 5, 10});
  CHECK(view.head(0, 1)(2, 3) == 5 + 20 + 3.0f);
  CHECK(view.head(1, 1)(2, 3) == 5 + 20 + 3.0f);
  CHECK(column_sum(view.head(1, 0), 1) == 1 + 11 + 21.0f);
}

TEST_CASE("cpu: view with negative strides reads backwards") {
  const std::vector<float> data = counting(24);
  // heads and rows of [H, N, d] = [2, 4, 3] in reverse; element (0, 0, 0, 0) is the last row
  const HeadsView<const float> view(data.data() + 21, {1, 2, 4, 3, 24, -12, -3});
  CHECK(view.head(0, 0)(0, 0) == 21.0f);
  CHECK(view.head(0, 0)(3, 2) == 14.0f);
  CHECK(view.head(0, 1)(3, 0) == 0.0f);
  CHECK(column_sum(view.head(0, 1), 0) == 9 + 6 + 3 + 0.0f);
  CHECK(address(view.head(0, 1)) == data.data() + 9);
}

TEST_CASE("cpu: view refuses a row stride of 0 that Eigen would misread") {
  std::vector<float> data(64);
  CHECK_THROWS_AS(HeadsView<float>(data.data(), {1, 1, 3, 4, 0, 0, 0}), std::invalid_argument);
  CHECK_NOTHROW(HeadsView<float>(data.data(), {1, 1, 1, 4, 0, 0, 0}));
  CHECK_NOTHROW(HeadsView<float>(data.data(), {1, 1, 0, 4, 0, 0, 0}));
  CHECK_NOTHROW(HeadsView<float>(data.data(), {1, 1, 3, 0, 0, 0, 0}));
  // The reason: a map with that stride reads its row again and again; a Ref to it does not.
  // WARN, for an Eigen that mends this breaks nothing here.
  const std::vector<float> values = counting(12);
  const Eigen::Map<const Matrix<float>, 0, Eigen::OuterStride<>> map(values.data(), 3, 4,
                                                                     Eigen::OuterStride<>(0));
  WARN(map.col(0).sum() == 0.0f);
  WARN(column_sum(map, 0) == 0 + 4 + 8.0f);
}

TEST_CASE("cpu: view of nothing has heads of nothing") {
  for (int zero = 0; zero < 4; ++zero) {
    for (const bool tokens_first : {false, true}) {
      CAPTURE(zero);
      CAPTURE(tokens_first);
      std::array<std::int64_t, 4> s = {2, 3, 4, 5};
      s[static_cast<std::size_t>(zero)] = 0;
      float* const nowhere = nullptr;
      const HeadsView<float> view = tokens_first ? bnhd_view(nowhere, s[0], s[1], s[2], s[3])
                                                 : bhnd_view(nowhere, s[0], s[1], s[2], s[3]);
      CHECK(view.empty());
      if (zero < 2) {
        CHECK_THROWS_AS(view.head(0, 0), std::out_of_range);
      } else {
        CHECK(view.head(1, 2).size() == 0);
        CHECK(view.head(1, 2).rows() == s[2]);
        CHECK(view.head(1, 2).cols() == s[3]);
      }
    }
  }
}

TEST_CASE("cpu: view checks batch and head") {
  std::vector<float> data(2 * 3 * 4 * 5);
  const auto view = bhnd_view(data.data(), 2, 3, 4, 5);
  CHECK_NOTHROW(view.head(1, 2));
  CHECK_THROWS_WITH_AS(view.head(2, 0), "batch 2 is outside a view of 2", std::out_of_range);
  CHECK_THROWS_WITH_AS(view.head(0, 3), "head 3 is outside a view of 3", std::out_of_range);
  CHECK_THROWS_AS(view.head(-1, 0), std::out_of_range);
  CHECK_THROWS_AS(view.head(0, -1), std::out_of_range);
  CHECK_THROWS_AS(view.head(0, kLargest), std::out_of_range);
}

TEST_CASE("cpu: view refuses sizes that make no sense") {
  std::vector<float> data(64);
  for (std::size_t negative = 0; negative < 4; ++negative) {
    CAPTURE(negative);
    std::array<std::int64_t, 4> s = {1, 2, 3, 4};
    s[negative] = -1;
    CHECK_THROWS_AS(bhnd_layout(s[0], s[1], s[2], s[3]), std::invalid_argument);
    CHECK_THROWS_AS(bnhd_layout(s[0], s[1], s[2], s[3]), std::invalid_argument);
    CHECK_THROWS_AS(HeadsView<float>(data.data(), {s[0], s[1], s[2], s[3], 8, 4, 4}),
                    std::invalid_argument);
  }
  float* const nowhere = nullptr;
  CHECK_THROWS_AS(bhnd_view(nowhere, 1, 1, 1, 1), std::invalid_argument);
  CHECK_THROWS_WITH_AS(bhnd_layout(1, -2, 3, 4),
                       "sizes must not be negative, found [B, H, N, d] = [1, -2, 3, 4]",
                       std::invalid_argument);
}

TEST_CASE("cpu: view sizes whose product leaves 64 bits are named") {
  constexpr std::int64_t big = std::int64_t{1} << 31;
  constexpr auto message =
      "the number of elements of [B, H, N, d] = [2147483648, 2147483648, 2, 1] does not fit in "
      "64 bits";
  CHECK_THROWS_WITH_AS(bhnd_layout(big, big, 2, 1), message, std::invalid_argument);
  CHECK_THROWS_WITH_AS(bnhd_layout(big, big, 2, 1), message, std::invalid_argument);
  CHECK_NOTHROW(bhnd_layout(big, big, 1, 1));
  CHECK_NOTHROW(bhnd_layout(1, 1, 1, kLargest));
  CHECK_THROWS_AS(bhnd_layout(2, 1, 1, kLargest), std::invalid_argument);
  // 2^32 * 2^32 wraps to 0 and would look like an empty array
  CHECK_THROWS_AS(bhnd_layout(2 * big, 2 * big, 1, 1), std::invalid_argument);
  // no elements, but strides that would not fit
  CHECK_THROWS_AS(bhnd_layout(0, big, big, 2), std::invalid_argument);
  CHECK_NOTHROW(bhnd_layout(0, big, big, 1));
}

TEST_CASE("cpu: view offsets that leave 64 bits are refused for any strides") {
  std::vector<float> data(4);
  const auto make = [&](const HeadsLayout& layout) {
    return HeadsView<float>(data.data(), layout);
  };
  // B, H, N, d, then the strides
  CHECK_THROWS_AS(make({3, 1, 1, 1, kLargest / 2 + 1, 0, 1}), std::invalid_argument);
  CHECK_NOTHROW(make({3, 1, 1, 1, kLargest / 2, 0, 1}));
  CHECK_THROWS_AS(make({3, 1, 1, 3, kLargest / 2, 0, 1}), std::invalid_argument);
  CHECK_THROWS_AS(make({2, 2, 1, 1, kLargest, 1, 1}), std::invalid_argument);
  CHECK_THROWS_AS(make({1, 1, 2, 1, 0, 0, kSmallest}), std::invalid_argument);
  CHECK_NOTHROW(make({1, 1, 1, 1, kSmallest, kSmallest, kSmallest}));  // never multiplied
  CHECK_NOTHROW(make({1, 1, 2, 1, 0, 0, -kLargest}));
}

TEST_CASE("cpu: view offsets are 64-bit") {
  // Wrapped to 32 bits the first two would be -2146988416 and -2103209984.
  static_assert(HeadsLayout{2067, 1, 1, 8, 1039680, 8, 8}.offset(2066, 0, 0) == 2147978880);
  static_assert(HeadsLayout{1, 1, 225305, 8, 0, 0, 9728}.offset(0, 0, 225304) == 2191757312);
  static_assert(HeadsLayout{1, 225305, 1, 8, 0, 9728, 8}.offset(0, 225304, 0) == 2191757312);

  // 1.34e9 elements, still below 2^31, and the same shape one size up
  static_assert(element_count(std::array<std::int64_t, 4>{1600, 729, 16, 72}) == 1343692800);
  static_assert(element_count(std::array<std::int64_t, 4>{2560, 729, 16, 72}) == 2149908480);
  for (const HeadsLayout& layout :
       {bhnd_layout(1600, 729, 16, 72), bnhd_layout(1600, 729, 16, 72)}) {
    CHECK(layout.offset(1599, 728, 15) + 71 == 1343692799);
    CHECK(layout.offset(1600, 0, 0) == 1343692800);
  }
  for (const HeadsLayout& layout :
       {bhnd_layout(2560, 729, 16, 72), bnhd_layout(2560, 729, 16, 72)}) {
    CHECK(layout.offset(2559, 728, 15) + 71 == 2149908479);
  }
}

TEST_CASE("cpu: view reaches memory beyond 2^31 elements") {
  // Address space only: the system supplies the one or two pages that are touched.
  constexpr std::int64_t block = 1039680;
  constexpr std::size_t bytes = 2067 * block;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const data = static_cast<std::uint8_t*>(memory);
  const HeadsView<std::uint8_t> view(data, {2067, 1, 2, 8, block, 16, 8});
  view.head(2066, 0)(1, 3) = 42;
  CHECK(int{data[2147978880 + 8 + 3]} == 42);
  munmap(memory, bytes);
}

TEST_CASE("cpu: element_count is exact or nothing") {
  const auto count = [](std::vector<std::int64_t> sizes) { return element_count(sizes); };
  CHECK(count({}) == 1);
  CHECK(count({7}) == 7);
  CHECK(count({2, 3, 4}) == 24);
  CHECK(count({0}) == 0);
  CHECK(count({5, 0, 3}) == 0);
  CHECK(count({kLargest}) == kLargest);
  CHECK(count({1, kLargest, 1}) == kLargest);
  CHECK_FALSE(count({kLargest, 2}).has_value());
  CHECK_FALSE(count({2, kLargest / 2 + 1}).has_value());
  CHECK_FALSE(count({std::int64_t{1} << 32, std::int64_t{1} << 32}).has_value());
  CHECK_FALSE(count({kLargest, kLargest, 0}).has_value());
  CHECK_FALSE(count({-1}).has_value());
  CHECK_FALSE(count({0, -1}).has_value());
}

}  // namespace flash_steps

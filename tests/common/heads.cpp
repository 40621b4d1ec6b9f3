// Batches of heads that own their memory, on the host and on the device.
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "common/device/eigen.hpp"
#include "common/tensor/heads_array.hpp"
#include "tests/common/device_kernels.hpp"
#include "tests/support/skip.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

TEST_CASE("cpu: a heads array owns what its views show") {
  HeadsArray<double> x(2, 3, 4, 5, 7.0);
  CHECK(x.elements() == std::vector<double>(2 * 3 * 4 * 5, 7.0));
  x.head(1, 2)(3, 4) = 1.0;
  CHECK(x.elements().back() == 1.0);
  x.view().head(0, 0)(0, 1) = 2.0;
  CHECK(x.elements()[1] == 2.0);
  HeadsArray<double> copy = x;
  copy.head(0, 0)(0, 0) = 3.0;
  CHECK(x.elements()[0] == 7.0);
  const HeadsArray<double> moved = std::move(copy);
  CHECK(moved.head(0, 0)(0, 0) == 3.0);
  CHECK(moved.head(1, 2)(3, 4) == 1.0);
  CHECK_THROWS_AS(x.head(2, 0), std::out_of_range);
  CHECK_THROWS_AS(HeadsArray<double>(1, -1, 1, 1), std::invalid_argument);
  CHECK(HeadsArray<double>(2, 3, 0, 5).view().empty());
}

TEST_CASE("device: heads go up and down with any layout") {
  if (!have_device()) return;
  const auto fill = [](HeadsArray<float>& x) {
    for (std::size_t i = 0; i < x.elements().size(); ++i) {
      x.elements()[i] = static_cast<float>(i);
    }
  };
  HeadsArray<float> x(2, 3, 70, 5);
  fill(x);
  const HeadsLayout padded{2, 3, 70, 5, 4 * 70 * 8, 70 * 8, 8};
  for (const HeadsLayout& layout : {bhnd_layout(2, 3, 70, 5), bnhd_layout(2, 3, 70, 5), padded,
                                    HeadsLayout{2, 3, 70, 5, 0, 0, 5}}) {
    std::vector<float> memory(static_cast<std::size_t>(layout_extent(layout)), NAN);
    const HeadsView<float> view(memory.data(), layout);
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 3; ++h) view.head(b, h) = x.head(b, h);
    }
    const DeviceHeads<float> up = to_device(view);
    CHECK(up.size() == layout_extent(layout));
    const std::vector<float> there = up.download();
    REQUIRE(there.size() == memory.size());
    for (std::size_t i = 0; i < there.size(); ++i) {
      const bool both_nan = std::isnan(there[i]) && std::isnan(memory[i]);
      if (!(there[i] == memory[i] || both_nan)) FAIL_CHECK(i);
    }
    DeviceHeads<float> y(layout.stride_h == 0 ? padded : layout);
    double_heads(up, y);
    const HeadsArray<float> down = to_host(y);
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 3; ++h) CHECK(down.head(b, h) == 2.0f * view.head(b, h));
    }
  }
  CHECK(to_host(to_device(x)).elements() == x.elements());
  const DeviceHeads<float> empty = to_device(HeadsArray<float>(2, 0, 70, 5));
  CHECK(empty.size() == 0);
  CHECK(to_host(empty).N() == 70);
  CHECK_THROWS_WITH_AS(DeviceHeads<float>(HeadsLayout{1, 1, 2, 5, 0, 0, -5}),
                       "strides must not be negative here, found [0, 0, -5, 1]",
                       std::invalid_argument);
}

// Chapter NN: a vector times a number, on the CPU and on the device, against float64.
#include "chapters/_template/template.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "chapters/_template/template_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/random_matrix.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/executable.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

// ---- what is tested: one body for both twins

using Scale = std::function<Vector<float>(const Vector<float>&, float)>;

// Outputs start as NaN, and inputs must come back unchanged.
Vector<float> on_cpu(const Vector<float>& x, float a) {
  Vector<float> y = Vector<float>::Constant(x.size(), NAN);
  check_unchanged([&] { scale_cpu<float>(x, y, a); }, x);
  return y;
}

Vector<float> on_device(const Vector<float>& x, float a) {
  const DeviceArray<float> device_x = to_device(x);
  DeviceArray<float> y(x.size());  // a new array is NaN
  scale_cuda(device_x, y, a);
  check_holds(device_x, x);
  return to_host(y);
}

void by_hand(const Scale& scale) {
  const Vector<float> y = scale(Vector<float>{{1, 2, 3}}, 10);
  check_close(y, Vector<double>{{10, 20, 30}}, {0, 0});
}

void sizes(const Scale& scale) {
  for (const Index N : {0, 1, 31, 32, 33, 255, 256, 257, 1000}) {
    CAPTURE(N);
    const Vector<float> x = random_matrix<float>(N, 1, 0, 0);
    check_close(scale(x, -1.5f), Vector<double>(-1.5 * x.cast<double>()), kFloat32);
  }
}

void nan_and_infinity(const Scale& scale) {
  const double inf = kInf<double>, nan = std::nan("");
  const Vector<float> x{{1, NAN, INFINITY, 0}};
  check_close(scale(x, -2), Vector<double>{{-2, nan, -inf, 0}}, {0, 0}, true);
  check_close(scale(x, 0), Vector<double>{{0, nan, nan, 0}}, {0, 0}, true);
}

}  // namespace

TEST_CASE("cpu: the worked example") { by_hand(on_cpu); }
TEST_CASE("device: the worked example") {
  if (have_device()) by_hand(on_device);
}

TEST_CASE("cpu: any size") { sizes(on_cpu); }
TEST_CASE("device: any size") {
  if (have_device()) sizes(on_device);
}

TEST_CASE("cpu: NaN and infinity stay where they are") { nan_and_infinity(on_cpu); }
TEST_CASE("device: NaN and infinity stay where they are") {
  if (have_device()) nan_and_infinity(on_device);
}

TEST_CASE("cpu: sizes that differ are refused") {
  Vector<float> y(2);
  CHECK_THROWS_WITH_AS(scale_cpu<float>(Vector<float>::Zero(3), y, 1),
                       "y must have the size of x, 3, found 2", std::invalid_argument);
}
TEST_CASE("device: sizes that differ are refused") {
  if (!have_device()) return;
  DeviceArray<float> x(3), y(2);
  CHECK_THROWS_WITH_AS(scale_cuda(x, y, 1), "y must have the size of x, 3, found 2",
                       std::invalid_argument);
}

// ---- the executable

TEST_CASE("cpu: the demonstration ends well") {
  const ProgramResult result = run({});
  check_prints(result, "A random vector of 1000 elements");
  CHECK(result.err == "");
}

namespace {

void tool_writes_y(const std::string& device) {
  const TemporaryFolder folder;
  const Arguments inputs = put_inputs(folder, {{"x", to_npy(Vector<double>{{1, 2, 3}})}});
  const std::string out = folder.file("out");
  const ProgramResult result = run(inputs, {"--a", "10", "--device", device, "--out", out});
  CHECK(result.err == "");
  REQUIRE(result.exit_code == 0);
  const auto y = load_vector<double>(out, "y");
  check_close(y, Vector<double>{{10, 20, 30}}, {0, 0});
}

}  // namespace

TEST_CASE("cpu: the tool writes y.npy") { tool_writes_y("cpu"); }
TEST_CASE("device: the tool writes y.npy") {
  if (have_device()) tool_writes_y(device_kind());
}

TEST_CASE("cpu: bad usage is exit 2 and one line") {
  check_refused({"--x", "missing.npy"}, "missing.npy");
}

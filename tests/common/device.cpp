// The device: one small kernel for each of its features, with the same result demanded of the
// simulator and of a GPU; and the simulator's reports, each for a kernel that earns it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/device/array.hpp"
#include "tests/common/device_kernels.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/device.hpp"
#include "tests/support/program.hpp"
#include "tests/support/skip.hpp"

using namespace flash_steps;
using namespace flash_steps::test;

namespace {

std::vector<float> numbers(int count, float first = 1.0f) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<float> with_reversed_blocks(std::vector<float> x, std::ptrdiff_t threads) {
  for (auto first = x.begin(); first != x.end(); first += threads) {
    std::reverse(first, first + threads);
  }
  return x;
}

bool all_nan(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isnan(value); });
}

bool is_simulator() { return std::string(device_kind()) == "sim"; }

// For cases about what only the simulator does: on a GPU they end here, with an assertion.
bool in_simulator() {
  CHECK((is_simulator() || std::string(device_kind()) == "cuda"));
  return is_simulator();
}

// Everything that a failure could have left in disorder: barriers, shuffles, shared memory.
void check_that_kernels_work() {
  DeviceArray<float> x(numbers(512));
  reverse_blocks(x, 128);
  CHECK(x.download() == with_reversed_blocks(numbers(512), 128));
  reverse_blocks_through_pieces(x, 128);
  CHECK(x.download() == numbers(512));
  DeviceArray<float> sums(32);
  sum_over_warps(sums, 32);
  CHECK(sums.download() == std::vector<float>(32, 32 * 33 / 2));
}

template <class Run>
std::string report_of(const Run& run) {
  try {
    run();
    synchronize_device();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no report";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// "[mark]" becomes the place of that mark.
std::string with_places(std::string text) {
  for (std::size_t open; (open = text.find('[')) != std::string::npos;) {
    const std::size_t close = text.find(']', open);
    text.replace(open, close - open + 1, place_of(text.substr(open + 1, close - open - 1)));
  }
  return text;
}

// Sets an environment variable, and puts the old value back.
class Environment {
 public:
  Environment(const std::string& name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name.c_str())) old_ = old;
    setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { old_ ? setenv(name_.c_str(), old_->c_str(), 1) : unsetenv(name_.c_str()); }

 private:
  std::string name_;
  std::optional<std::string> old_;
};

}  // namespace

// ---- what both devices must do alike
// ----------------------------------------------------------

TEST_CASE("device: an array takes over the elements of another") {
  if (!have_device()) return;
  for (const int N : {0, 1, 5, 10007}) {
    std::vector<float> values(static_cast<std::size_t>(N));
    std::iota(values.begin(), values.end(), 1.0f);
    const DeviceArray<float> from(values);
    DeviceArray<float> to(N), other(N + 1);
    to.copy_from(from);
    CHECK(to.download() == values);
    CHECK_THROWS_AS(other.copy_from(from), std::invalid_argument);
  }
}

TEST_CASE("device: every thread of every block runs once and knows its place") {
  if (!have_device()) return;
  struct Shape {
    Extent grid, block;
  };
  for (const Shape& s :
       {Shape{1, 1}, Shape{3, 33}, Shape{{3, 2}, {5, 4}}, Shape{{2, 3, 4}, {4, 3, 2}},
        Shape{2, {1, 1, 64}}, Shape{1, 1024}, Shape{{1, 5}, {2, 512}}}) {
    const std::int64_t threads = s.block.x * s.block.y * s.block.z,
                       blocks = s.grid.x * s.grid.y * s.grid.z;
    CAPTURE(threads);
    CAPTURE(blocks);
    DeviceArray<int> out(6 * threads * blocks);
    write_indices(out, s.grid, s.block);
    std::vector<int> expected;
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (std::int64_t t = 0; t < threads; ++t) {
        for (const std::int64_t i :
             {t % s.block.x, t / s.block.x % s.block.y, t / s.block.x / s.block.y, b % s.grid.x,
              b / s.grid.x % s.grid.y, b / s.grid.x / s.grid.y}) {
          expected.push_back(static_cast<int>(i));
        }
      }
    }
    CHECK(out.download() == expected);
  }
}

TEST_CASE("device: grids may be large in every direction") {
  if (!have_device()) return;
  for (const Extent& grid : {Extent(70000), Extent(2, 65535), Extent(1, 2, 65535)}) {
    const std::int64_t blocks = grid.x * grid.y * grid.z;
    CAPTURE(blocks);
    const std::vector<int> zeros(static_cast<std::size_t>(blocks), 0);
    DeviceArray<int> x(zeros);
    count_blocks(x, grid);
    CHECK(x.download() == std::vector<int>(zeros.size(), 1));
  }
}

TEST_CASE("device: global memory is read and written element by element") {
  if (!have_device()) return;
  for (const int N : {1, 31, 32, 33, 1000}) {
    CAPTURE(N);
    const DeviceArray<float> x(numbers(N));
    DeviceArray<float> y(N);
    double_values(x, y);
    std::vector<float> expected = numbers(N);
    for (float& value : expected) value *= 2;
    CHECK(y.download() == expected);
    CHECK(x.download() == numbers(N));

    const int shift = N / 3;
    add_shifted(x, y, shift);
    for (int i = 0; i + shift < N; ++i) {
      expected[static_cast<std::size_t>(i)] += static_cast<float>(i + shift + 1);
    }
    CHECK(y.download() == expected);
  }
}

TEST_CASE("device: global memory is read and written 16 bytes at a time") {
  if (!have_device()) return;
  for (const int N : {4, 64, 1000}) {
    CAPTURE(N);
    const DeviceArray<float> x(numbers(N));
    DeviceArray<float> y(N);
    double_values_by_four(x, y);
    std::vector<float> expected = numbers(N);
    for (float& value : expected) value *= 2;
    CHECK(y.download() == expected);
  }
}

TEST_CASE("device: threads trade places through a shared array and a barrier") {
  if (!have_device()) return;
  for (const int threads : {1, 32, 33, 256, 1024}) {
    CAPTURE(threads);
    DeviceArray<float> x(numbers(6 * threads));
    reverse_blocks(x, threads);
    CHECK(x.download() == with_reversed_blocks(numbers(6 * threads), threads));
  }
}

TEST_CASE("device: pieces of dynamic shared memory do not overlap") {
  if (!have_device()) return;
  for (const int threads : {1, 30, 32, 65, 1024}) {
    CAPTURE(threads);
    DeviceArray<float> x(numbers(6 * threads));
    reverse_blocks_through_pieces(x, threads);
    CHECK(x.download() == with_reversed_blocks(numbers(6 * threads), threads));
  }
}

TEST_CASE("device: shared memory is read and written 16 bytes at a time") {
  if (!have_device()) return;
  const std::vector<float> before = numbers(3 * 4 * 64);
  DeviceArray<float> x(before);
  reverse_blocks_by_four(x, 64);
  const std::vector<float> after = x.download();
  for (std::size_t i = 0; i < after.size(); ++i) {
    CHECK(after[i] == before[i / 256 * 256 + 255 - i % 256]);
  }
}

TEST_CASE("device: atomics lose no update of any thread or block") {
  if (!have_device()) return;
  DeviceArray<int> ints(std::vector<int>{7, 7, 7});
  DeviceArray<unsigned> unsigneds(std::vector<unsigned>{7, 7, 7});
  DeviceArray<float> floats(std::vector<float>{7, 7, 7});
  reset_device_traffic();
  count_atomically(ints, unsigneds, floats, {50, 2}, {96, 2});
  const int threads = 100 * 192;
  CHECK(ints.download() == std::vector<int>{7, 7 - threads, 7});
  CHECK(unsigneds.download() == std::vector<unsigned>{7, 7 + 3 * threads, 7});
  CHECK(floats.download() == std::vector<float>{7, 7 + threads / 2, 7});  // exact in float32
  if (is_simulator()) {
    const Traffic traffic = device_traffic().value();
    CHECK(traffic.atomic_bytes == 3 * 4 * threads);
    CHECK(traffic.read_bytes == 0);
    CHECK(traffic.written_bytes == 0);
  }
}

// As gradients of rows without keys are. More of them than the simulator takes for a deadlock
// where one address is polled.
TEST_CASE("device: adding zeros is no waiting") {
  if (!have_device()) return;
  DeviceArray<float> x(std::vector<float>{1, 2, 3, 4});
  add_zeros(x, 1 << 20);
  CHECK(x.download() == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("device: a lock keeps two words together") {
  if (!have_device()) return;
  for (int turn = 0; turn < 10; ++turn) {
    DeviceArray<float> sums(std::vector<float>{0, 0});
    add_under_lock(sums, 1000);
    CHECK(sums.download() == std::vector<float>{1000, 2000});
  }
}

TEST_CASE("device: blocks may wait for those that started before them") {
  if (!have_device()) return;
  for (int turn = 0; turn < 10; ++turn) {
    DeviceArray<int> order(500);
    take_turns(order);
    const std::vector<int> numbers = order.download();
    for (int block = 0; block < 500; ++block) {
      if (numbers[static_cast<std::size_t>(block)] != 100 + block) FAIL_CHECK(block);
    }
    CHECK(numbers.back() == 599);
  }
}

TEST_CASE("device: all of a block's shared memory can be used") {
  if (!have_device()) return;
  // 48 KB is where a GPU wants to be asked, for both kinds of shared memory together.
  const std::int64_t limit = device_limits().shared_bytes_per_block;
  for (const std::int64_t bytes :
       {std::int64_t{40960}, std::int64_t{40976}, std::int64_t{49152}, limit - kBesideBytes}) {
    CAPTURE(bytes);
    DeviceArray<float> x(numbers(512));
    reverse_blocks_at_the_end(x, 128, bytes);
    CHECK(x.download() == with_reversed_blocks(numbers(512), 128));
  }
  DeviceArray<float> x(numbers(128));
  const std::string refusal =
      is_simulator() ? report_of([&] { reverse_blocks_at_the_end(x, 128, limit); })
                     : message_of([&] { reverse_blocks_at_the_end(x, 128, limit); });
  CAPTURE(refusal);
  CHECK(contains(refusal, std::to_string(limit + kBesideBytes)));
  CHECK(contains(refusal, std::to_string(limit)));
  check_that_kernels_work();
}

TEST_CASE("device: xor shuffles add up a warp") {
  if (!have_device()) return;
  for (const int threads : {1, 2, 16, 32, 40, 96, 1024}) {
    CAPTURE(threads);
    DeviceArray<float> out(threads);
    sum_over_warps(out, threads);
    std::vector<float> expected;
    for (int t = 0; t < threads; ++t) {
      const int first = t / 32 * 32, end = std::min(first + 32, threads);
      expected.push_back(static_cast<float>((first + 1 + end) * (end - first)) / 2);
    }
    CHECK(out.download() == expected);
  }
}

TEST_CASE("device: lanes that a mask leaves out are not awaited") {
  if (!have_device()) return;
  DeviceArray<float> out(32);
  exchange_in_halves(out);
  std::vector<float> expected;
  for (int lane = 0; lane < 32; ++lane) {
    expected.push_back(static_cast<float>(lane < 16 ? lane ^ 1 : lane ^ 2));
  }
  CHECK(out.download() == expected);
}

TEST_CASE("device: lanes that have left are not awaited") {
  if (!have_device()) return;
  const std::vector<float> before(32, -1.0f);
  DeviceArray<float> out(before);
  exchange_after_leaving(out);
  std::vector<float> expected;
  for (int lane = 0; lane < 32; ++lane) {
    expected.push_back(static_cast<float>(lane % 2 == 1 ? -1 : lane ^ 2));
  }
  CHECK(out.download() == expected);
}

TEST_CASE("device: shuffles carry ints and doubles too") {
  if (!have_device()) return;
  DeviceArray<int> ints(32);
  DeviceArray<unsigned> unsigneds(32);
  DeviceArray<double> doubles(32);
  exchange_types(ints, unsigneds, doubles);
  for (int lane = 0; lane < 32; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    CHECK(ints.download()[i] == -(lane ^ 5));
    CHECK(unsigneds.download()[i] == 0xffffffffu - static_cast<unsigned>(lane ^ 5));
    CHECK(doubles.download()[i] == 1.0 + 1e-12 * (lane ^ 5));
  }
}

TEST_CASE("device: a block may wait at millions of barriers") {
  if (!have_device()) return;
  DeviceArray<float> out(1);
  wait_often(out, (1 << 21) + 64);  // more than the simulator can tell apart
  CHECK(out.download()[0] == 63 * 64 / 2);
}

TEST_CASE("device: each of many launches sees what those before it wrote") {
  if (!have_device()) return;
  std::vector<int> expected(5, 0);
  DeviceArray<int> x(expected);
  for (int launches = 0; launches < 200; ++launches) {
    const int blocks = launches % 5 + 1;
    count_blocks(x, blocks);
    for (int b = 0; b < blocks; ++b) ++expected[static_cast<std::size_t>(b)];
  }
  CHECK(x.download() == expected);
}

TEST_CASE("device: kernels can be launched from threads that come and go") {
  if (!have_device()) return;
  struct Outcome {
    std::vector<float> x;
    std::string error;
  };
  const auto launch_some = [](Outcome& outcome) {
    try {
      DeviceArray<float> x(numbers(512));
      reverse_blocks(x, 128);
      if (is_simulator()) report_of([] { run_bug("write-write"); });
      reverse_blocks_through_pieces(x, 256);
      outcome.x = x.download();
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
  };
  for (int turn = 0; turn < 3; ++turn) {
    Outcome first, second;
    std::thread one([&] { launch_some(first); }), other([&] { launch_some(second); });
    one.join();
    other.join();
    CHECK(first.error == "");
    CHECK(second.error == "");
    CHECK(first.x == with_reversed_blocks(with_reversed_blocks(numbers(512), 128), 256));
    CHECK(second.x == first.x);
  }
}

TEST_CASE("device: arrays go up and down and move") {
  if (!have_device()) return;
  const std::vector<float> values = numbers(1000);
  DeviceArray<float> a(values);
  CHECK(a.size() == 1000);
  CHECK(a.download() == values);
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 256 == 0);

  const std::vector<float> others = numbers(1000, -5.0f);
  a.upload(others.data());
  DeviceArray<float> b = std::move(a);
  CHECK(b.download() == others);
  DeviceArray<float> c(values);
  c = std::move(b);
  CHECK(c.size() == 1000);
  CHECK(c.download() == others);

  const DeviceMatrix<double> matrix(6, 7);
  CHECK(matrix.rows() == 6);
  CHECK(matrix.cols() == 7);
  CHECK(matrix.size() == 42);
}

TEST_CASE("device: new arrays hold NaN") {
  if (!have_device()) return;
  for (int turn = 0; turn < 3; ++turn) {  // later ones where earlier ones were
    DeviceArray<float> x(1000);
    CHECK(all_nan(x.download()));
    x.upload(numbers(1000).data());
  }
  for (const double value : DeviceMatrix<double>(3, 5).download()) CHECK(std::isnan(value));
  CHECK(DeviceArray<int>(3).download() == std::vector<int>(3, -1));
}

TEST_CASE("device: empty arrays are arrays") {
  if (!have_device()) return;
  DeviceArray<float> none, zero(0);
  const DeviceMatrix<float> flat(0, 5);
  CHECK(none.size() == 0);
  CHECK(none.download().empty());
  zero.upload(nullptr);
  CHECK(zero.download().empty());
  CHECK(flat.size() == 0);
  none = DeviceArray<float>(numbers(3));
  CHECK(none.download() == numbers(3));
}

TEST_CASE("cpu: arrays of impossible sizes are refused") {
  const std::int64_t big = std::int64_t{1} << 32;
  CHECK_THROWS_WITH_AS(DeviceMatrix<float>(big, big), doctest::Contains("4294967296"),
                       std::invalid_argument);
  CHECK_THROWS_AS(DeviceMatrix<float>(-2, -3), std::invalid_argument);
  CHECK_THROWS_WITH_AS(DeviceArray<float>(-1), doctest::Contains("-1"), std::invalid_argument);
  CHECK_THROWS_AS(DeviceArray<float>(std::int64_t{1} << 62), std::invalid_argument);
}

TEST_CASE("device: a GPU without enough memory says so and works on") {
  if (!have_device()) return;
  if (is_simulator()) {  // the host's memory: its allocator may end the program
    MESSAGE("skipped: this needs a GPU");
    skipped() = true;
    return;
  }
  CHECK_THROWS_WITH_AS(DeviceArray<float>(std::int64_t{1} << 43),
                       doctest::Contains("35184372088832 bytes"), DeviceError);
  check_that_kernels_work();  // no later call is blamed for it
}

TEST_CASE("device: traffic is counted in bytes or not at all") {
  if (!have_device()) return;
  reset_device_traffic();
  const DeviceArray<float> x(numbers(1000));
  DeviceArray<float> y(1000);
  const auto traffic = [] { return device_traffic().value_or(Traffic{-1, -1}); };
  if (!is_simulator()) {
    double_values(x, y);
    CHECK(!device_traffic());
    return;
  }
  CHECK(traffic().read_bytes == 0);
  CHECK(traffic().written_bytes == 0);
  double_values(x, y);
  CHECK(traffic().read_bytes == 4000);
  CHECK(traffic().written_bytes == 4000);
  double_values_by_four(x, y);
  CHECK(traffic().read_bytes == 8000);
  CHECK(traffic().written_bytes == 8000);
  add_shifted(x, y, 400);  // reads x and y, writes y, for 600 elements
  CHECK(traffic().read_bytes == 8000 + 2 * 2400);
  CHECK(traffic().written_bytes == 8000 + 2400);
  y.upload(y.download().data());  // not a kernel's
  CHECK(traffic().written_bytes == 8000 + 2400);
  reset_device_traffic();
  reverse_blocks(y, 250);  // shared memory does not count
  CHECK(traffic().read_bytes == 4000);
  CHECK(traffic().written_bytes == 4000);
  DeviceArray<float> large(1 << 20);
  reverse_blocks(large, 1024);  // enough for several host threads
  CHECK(traffic().read_bytes == 4000 + (4 << 20));
  CHECK(traffic().written_bytes == 4000 + (4 << 20));
}

TEST_CASE("device: launches beyond a limit are refused with value and limit") {
  if (!have_device()) return;
  const DeviceLimits limits = device_limits();
  const auto check_refusal = [](const std::vector<std::string>& parts, const Extent& grid,
                                const Extent& block, std::int64_t shared_bytes) {
    const std::string refusal = message_of([&] { do_nothing(grid, block, shared_bytes); });
    CAPTURE(refusal);
    CHECK(contains(refusal, "do_nothing: "));
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(refusal, part));
    }
  };
  const std::int64_t threads = limits.threads_per_block, bytes = limits.shared_bytes_per_block;
  check_refusal({"block x", std::to_string(threads + 1), std::to_string(threads)}, 1,
                threads + 1, 0);
  check_refusal({"block y", std::to_string(threads + 1), std::to_string(threads)}, 1,
                {1, threads + 1}, 0);
  check_refusal({"block z", "65", "64"}, 1, {1, 1, 65}, 0);
  check_refusal({"threads", std::to_string(2 * threads), std::to_string(threads)}, 1,
                {threads, 2}, 0);
  check_refusal({"block x", "0"}, 1, 0, 0);
  check_refusal({"shared", std::to_string(bytes + 1), std::to_string(bytes)}, 1, 1, bytes + 1);
  check_refusal({"shared", "-1"}, 1, 1, -1);
  check_refusal({"grid x", "0"}, 0, 1, 0);
  check_refusal({"grid y", "0"}, {1, 0}, 1, 0);
  check_refusal({"grid x", "4294967297", "2147483647"}, (std::int64_t{1} << 32) + 1, 1, 0);
  check_refusal({"grid y", "65536", "65535"}, {1, 65536}, 1, 0);
  check_refusal({"grid z", "65536", "65535"}, {1, 1, 65536}, 1, 0);
  do_nothing(1, threads, bytes);
  do_nothing({1, 1, 65535}, {1, 1, 64});
  synchronize_device();
  check_that_kernels_work();
}

TEST_CASE("device: it has a name and limits") {
  if (!have_device()) return;
  CHECK(!device_name().empty());
  const DeviceLimits limits = device_limits();
  CHECK(limits.threads_per_block == 1024);
  CHECK(limits.shared_bytes_per_block >= 48 * 1024);
  CHECK(limits.grid_x == 2147483647);
  CHECK(limits.grid_y == 65535);
  CHECK(limits.grid_z == 65535);
  CHECK(limits.multiprocessors > 0);
  CHECK_NOTHROW(require_device(device_kind()));
}

TEST_CASE("cpu: a device that this build lacks is refused by name") {
  CHECK_NOTHROW(require_device("cpu"));
  const std::string other = is_simulator() ? "cuda" : "sim";
  CHECK_THROWS_WITH_AS(require_device(other), doctest::Contains(("'" + other + "'").c_str()),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(require_device("gpu"), doctest::Contains("'gpu'"),
                       std::invalid_argument);
}

// ---- the simulator's reports
// ------------------------------------------------------------------

namespace {

// What the simulator says of each kernel with a bug: threads in order, and in reverse.
struct Reports {
  std::string forward, reverse;
  Reports(const std::string& both) : forward(both), reverse(both) {}
  Reports(const std::string& forward, const std::string& reverse)
      : forward(forward), reverse(reverse) {}
};

const std::map<std::string, Reports>& expected_reports() {
  const std::string bounds = ": out of bounds: thread 7 is at index ",
                    global = " of a global array of 64 (block 1)",
                    shared = " of a piece of shared memory of 8 (block 1)",
                    race = " with no barrier between (block 1)",
                    exchange = " waits in a warp exchange with mask ";
  static const std::map<std::string, Reports> reports{
      {"read past the end", {"[read past the end]" + bounds + "64" + global}},
      {"write past the end", {"[write past the end]" + bounds + "64" + global}},
      {"negative index", {"[negative index]" + bounds + "-1" + global}},
      {"unsigned index", {"[unsigned index]" + bounds + "4294967295" + global}},
      {"moved pointer", {"[moved pointer]" + bounds + "64" + global}},
      {"last float4", {"[last float4]" + bounds + "15 of a global array of 15 (block 1)"}},
      {"float4 before the start", {"[float4 before the start]" + bounds + "-4" + global}},
      {"misaligned float4",
       {"[misaligned float4]: misaligned: the address that thread 7 takes is not a multiple of "
        "16 bytes (block 1)"}},
      {"piece overrun", {"[piece overrun]" + bounds + "8" + shared}},
      {"array overrun", {"[array overrun]" + bounds + "8" + shared}},
      {"take too much",
       {"[take too much]: takes shared memory up to byte 1200, but the launch gave 1024 (block "
        "1)"}},
      {"arrays too large",
       {"[arrays too large]: the shared_arrays of a block take 65536 bytes (at most 49152), "
        "with dynamic shared memory 66560 (at most 232448) (block 1)"}},

      {"write-write",
       {"[write-write]: race: thread 9 writes index 5 of shared memory, which thread 3 wrote "
        "at "
        "[write-write]" +
            race,
        "[write-write]: race: thread 3 writes index 5 of shared memory, which thread 9 wrote "
        "at "
        "[write-write]" +
            race}},
      {"read-write",
       {"[read-write, the write]: race: thread 9 writes index 5 of shared memory, which thread "
        "3 read at [read-write, the read]" +
            race,
        "[read-write, the read]: race: thread 3 reads index 5 of shared memory, which thread 9 "
        "wrote at [read-write, the write]" +
            race}},
      {"write-read",
       {"[write-read, the read]: race: thread 9 reads index 5 of shared memory, which thread 3 "
        "wrote at [write-read, the write]" +
            race,
        "[write-read, the write]: race: thread 3 writes index 5 of shared memory, which thread "
        "9 read at [write-read, the read]" +
            race}},
      {"two readers",
       {"[two readers, writes]: race: thread 9 writes index 5 of shared memory, which thread 3 "
        "read at [two readers, reads]" +
            race,
        "[two readers, reads]: race: thread 3 reads index 5 of shared memory, which thread 9 "
        "wrote at [two readers, writes]" +
            race}},
      {"three readers",
       {"[three readers, write]: race: thread 11 writes index 5 of shared memory, which thread "
        "9 read at [three readers, read]" +
            race,
        "[three readers, read]: race: thread 10 reads index 5 of shared memory, which thread "
        "11 "
        "wrote at [three readers, write]" +
            race}},
      {"read again",
       {"[read again, writes]: race: thread 9 writes index 5 of shared memory, which thread 3 "
        "read at [read again, reads]" +
            race,
        "[read again, reads]: race: thread 3 reads index 5 of shared memory, which thread 9 "
        "wrote at [read again, writes]" +
            race}},
      {"write again",
       {"[write again, reads]: race: thread 9 reads index 5 of shared memory, which thread 3 "
        "wrote at [write again, writes]" +
            race,
        "[write again, writes]: race: thread 3 writes index 5 of shared memory, which thread 9 "
        "read at [write again, reads]" +
            race}},
      {"first reader",
       {"[first reader, writes]: race: thread 3 writes index 5 of shared memory, which thread "
        "9 "
        "read at [first reader, reads]" +
        race}},
      {"over a shuffle",
       {"[over a shuffle, reads]: race: thread 9 reads index 5 of shared memory, which thread "
        "3 "
        "wrote at [over a shuffle, writes]" +
        race}},
      {"float4",
       {"[float4, float]: race: thread 9 reads index 6 of shared memory, which thread 3 wrote "
        "at [float4 writes]" +
            race,
        "[float4 writes]: race: thread 3 writes index 1 of shared memory, which thread 9 read "
        "at [float4, float]" +
            race}},
      {"missing barrier",
       {"[missing barrier, write]: race: thread 32 writes index 32 of shared memory, which "
        "thread 31 read at [missing barrier, read]" +
            race,
        "[missing barrier, write]: race: thread 31 writes index 31 of shared memory, which "
        "thread 32 read at [missing barrier, read]" +
            race}},
      {"missing second barrier",
       {"[missing second barrier, write]: race: thread 41 writes index 41 of shared memory, "
        "which thread 40 read at [missing second barrier, read]" +
            race,
        "[missing second barrier, read]: race: thread 40 reads index 41 of shared memory, "
        "which "
        "thread 41 wrote at [missing second barrier, write]" +
            race}},

      {"barrier in a branch",
       {"[barrier in a branch]: divergent: thread 0 waits at __syncthreads() for thread 32, "
        "which left the kernel without waiting anywhere (block 1)"}},
      {"early return",
       {"[early return, after]: divergent: thread 0 waits at __syncthreads() for thread 40, "
        "which left the kernel after it had waited at [early return, before] (block 1)"}},
      {"two barriers",
       {"[two barriers, one]: divergent: thread 0 waits at __syncthreads() for thread 32, "
        "which "
        "waits at __syncthreads() at [two barriers, the other] (block 1)"}},
      {"shuffle and barrier",
       {"[shuffle and barrier, s]: divergent: thread 0" + exchange +
        "0xffffffff for thread 3, which waits at __syncthreads() at [shuffle and barrier, b] "
        "(block 1)"}},
      {"two masks",
       {"[two masks]: divergent: thread 0" + exchange + "0xffffffff for thread 3, which" +
        exchange + "0x0000ffff at [two masks] (block 1)"}},
      {"two shuffles",
       {"[two shuffles, one]: divergent: thread 0" + exchange +
        "0xffffffff for thread 16, which" + exchange +
        "0xffffffff at [two shuffles, the other] (block 1)"}},
      {"mask without own lane",
       {"[mask without own lane]: warp exchange: its mask leaves out thread 7, which calls it "
        "(block 1)"}},
  };
  return reports;
}

}  // namespace

TEST_CASE("device: the simulator reports every bug for certain and works on") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  const std::vector<std::string> names = bug_names();
  CHECK(names.size() == expected_reports().size());
  for (const std::string& name : names) {
    CAPTURE(name);
    REQUIRE(expected_reports().count(name) == 1);
    const Reports& reports = expected_reports().at(name);
    const std::string forward = with_places(reports.forward),
                      reverse = with_places(reports.reverse);
    set_thread_order(ThreadOrder::forward);
    CHECK(report_of([&] { run_bug(name); }) == forward);
    check_that_kernels_work();
    set_thread_order(ThreadOrder::reverse);
    CHECK(report_of([&] { run_bug(name); }) == reverse);
    check_that_kernels_work();
    for (std::uint64_t seed = 0; seed < 5; ++seed) {  // other threads may be named
      set_thread_order(ThreadOrder::random, seed);
      const std::string random = report_of([&] { run_bug(name); });
      CAPTURE(random);
      const std::string kind = contains(forward, "race: ") ? "race: " : forward;
      CHECK(contains(random, kind));
      CHECK(contains(random, "(block 1)"));
      check_that_kernels_work();
    }
  }
  set_thread_order(ThreadOrder::forward);
}

TEST_CASE("device: the simulator names blocks and threads in three dimensions") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  CHECK(report_of(run_bug_in_three_dimensions) ==
        with_places("[three dimensions]: out of bounds: thread 1,0,1 is at index 64 of a "
                    "global array of 64 (block 0,1,2)"));
  check_that_kernels_work();
}

TEST_CASE("device: the simulator reports the lowest block that fails") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  for (int turn = 0; turn < 10; ++turn) {
    // With several host threads, block 6 fails before block 5, or after it.
    CHECK(contains(report_of([] { run_late_bug(0); }), "(block 5)"));
    CHECK(contains(report_of([] { run_late_bug(3000); }), "(block 5)"));
  }
  check_that_kernels_work();
}

TEST_CASE("device: the simulator ends a wait for what never comes") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  CHECK(report_of(wait_for_nobody) ==
        with_places("[wait for nobody]: deadlock: thread 7 polls for ever; a block may wait "
                    "for lower-numbered blocks only (block 0)"));
  check_that_kernels_work();
  for (int turn = 0; turn < 10; ++turn) {  // the block that failed is named, not one that waits
    CHECK(report_of(fail_while_others_wait) ==
          with_places("[awaited block]: out of bounds: thread 0 is at index 64 of a global "
                      "array of 64 (block 0)"));
    check_that_kernels_work();
  }
}

TEST_CASE("device: the simulator unwinds the threads of a block that failed") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  DeviceArray<float> x(64);
  set_thread_order(ThreadOrder::forward);  // the last thread is the wrong one
  CHECK(contains(report_of([&] { run_bug_while_others_wait(x); }), "out of bounds"));
  CHECK(x.download() == std::vector<float>(64, 2.0f));
  set_thread_order(ThreadOrder::reverse);  // no other one has begun
  x = DeviceArray<float>(64);
  CHECK(contains(report_of([&] { run_bug_while_others_wait(x); }), "out of bounds"));
  CHECK(std::isnan(x.download()[0]));
  CHECK(x.download()[63] == 2.0f);
  check_that_kernels_work();
  set_thread_order(ThreadOrder::forward);
}

TEST_CASE("device: the simulator lets a kernel's own exception through") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  CHECK_THROWS_WITH_AS(run_throwing_kernel(), "not a device's", std::out_of_range);
  check_that_kernels_work();
}

TEST_CASE("device: correct kernels run without a report in every order of threads") {
  if (!have_device()) return;
  const auto run_all = [] {
    check_that_kernels_work();
    DeviceArray<float> x(numbers(2048)), out(96);
    reverse_blocks(x, 1024);
    reverse_blocks_through_pieces(x, 1024);
    CHECK(x.download() == numbers(2048));
    sum_over_warps(out, 96);
    exchange_in_halves(out);
    exchange_after_leaving(out);
    CHECK(out.download()[2] == 0.0f);
    wait_often(out, 1000);
    CHECK(out.download()[0] == 63 * 64 / 2);
  };
  in_other_thread_orders(run_all, 10);
  run_all();
}

TEST_CASE("device: fresh shared memory holds NaN in every block of the simulator") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  DeviceArray<int> stale(std::vector<int>(64, 0));
  count_stale_words(stale);
  CHECK(stale.download() == std::vector<int>(64, 0));
  report_of([] { run_bug("missing barrier"); });  // leaves numbers behind
  count_stale_words(stale);
  CHECK(stale.download() == std::vector<int>(64, 0));
}

TEST_CASE("device: absent lanes hand the simulator's shuffles NaN") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  DeviceArray<float> out(33);
  exchange_with_absent_lanes(out);
  const std::vector<float> got = out.download();
  for (int lane = 0; lane < 8; ++lane) {
    CAPTURE(lane);
    CHECK(got[static_cast<std::size_t>(lane)] == static_cast<float>(lane ^ 4));
    CHECK(std::isnan(got[static_cast<std::size_t>(8 + lane)]));  // the block has no such thread
    CHECK(std::isnan(got[static_cast<std::size_t>(16 + lane)]));  // no warp has such a lane
    CHECK(std::isnan(got[static_cast<std::size_t>(24 + lane)]));  // the mask leaves it out
  }
  CHECK(std::isnan(got[32]));  // it has left the kernel
}

// ---- the order of threads
// ---------------------------------------------------------------------

namespace {

// Of each block: its threads as they come, `threads` before a barrier and `threads` after it.
std::vector<int> order_of_threads(int blocks, int threads) {
  DeviceArray<int> out(std::int64_t{2} * blocks * threads);
  DeviceArray<int> next(std::vector<int>(static_cast<std::size_t>(blocks), 0));
  record_order(out, next, threads);
  return out.download();
}

std::vector<int> random_order(std::uint64_t seed) {
  set_thread_order(ThreadOrder::random, seed);
  return order_of_threads(50, 40);
}

}  // namespace

TEST_CASE("device: the simulator runs threads in the order that is asked for") {
  if (!have_device()) return;
  if (!in_simulator()) return;
  set_thread_order(ThreadOrder::forward);
  const std::vector<int> forward{0, 1, 2, 3, 0, 1, 2, 3}, reverse{3, 2, 1, 0, 3, 2, 1, 0};
  CHECK(order_of_threads(1, 4) == forward);
  set_thread_order(ThreadOrder::reverse);
  CHECK(order_of_threads(1, 4) == reverse);

  const std::vector<int> first = random_order(1);
  std::vector<std::vector<int>> turns;  // each block's, before and after the barrier
  for (auto t = first.begin(); t != first.end(); t += 40) turns.emplace_back(t, t + 40);
  for (std::vector<int> turn : turns) {
    std::sort(turn.begin(), turn.end());
    CHECK(turn.front() == 0);
    CHECK(turn.back() == 39);
    CHECK(std::unique(turn.begin(), turn.end()) == turn.end());
  }
  std::sort(turns.begin(), turns.end());
  CHECK(std::unique(turns.begin(), turns.end()) == turns.end());  // no two alike

  for (int again = 0; again < 20; ++again) CHECK(random_order(1) == first);
  CHECK(random_order(2) != first);
  set_thread_order(ThreadOrder::forward);
}

TEST_CASE("device: FLASH_STEPS_THREAD_ORDER is read with care") {
  if (!have_device()) return;
  const auto run_with = [](const std::string& value) {
    const Environment order("FLASH_STEPS_THREAD_ORDER", value);
    return run_program("/proc/self/exe",
                       {"--test-case=device: each of many launches sees what those before*"});
  };
  for (const std::string value :
       {"", "forward", "reverse", "random", "random:7", "random:18446744073709551615"}) {
    CAPTURE(value);
    CHECK(run_with(value).exit_code == 0);
  }
  if (!is_simulator()) return;  // a GPU has its own order
  for (const std::string value : {"sideways", "Forward", "forward ", "random:", "random:x",
                                  "random:-1", "random:7x", "random:18446744073709551616"}) {
    CAPTURE(value);
    const ProgramResult result = run_with(value);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "FLASH_STEPS_THREAD_ORDER is '" + value +
                                   "', but must be forward, reverse, random or random:SEED"));
  }
}

#include "common/tensor/npy.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>    // mkdtemp
#include <sys/stat.h>  // mkfifo

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/tensor/npy_matrix.hpp"

namespace flash_steps {

namespace {

using std::string_literals::operator""s;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// ---- helpers -------------------------------------------------------------------------------

// A directory that goes away with its owner; cases may run side by side in several processes.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "npy-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::filesystem::path operator/(const char* file) const { return path_ / file; }

 private:
  std::filesystem::path path_;
};

// The file by hand: magic, version, length field, header, data. Independent of the writer.
std::string npy_bytes(char major, const std::string& header, const std::string& data) {
  std::string bytes = "\x93NUMPY"s + major + '\0';
  for (std::size_t i = 0, size = header.size(); i < (major == 1 ? 2u : 4u); ++i, size >>= 8) {
    bytes += static_cast<char>(size & 0xff);
  }
  return bytes + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& bytes, const std::string& name = "x.npy") {
  return parse_npy(std::as_bytes(std::span(bytes)), name);
}

std::string serialise(const NpyArray& array) {
  std::ostringstream out;
  write_npy(out, array, "memory");
  return out.str();
}

template <class T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Equal bit by bit, so that NaN payloads and the sign of zero count.
bool same_bits(const NpyArray& a, const NpyArray& b) {
  if (a.shape != b.shape || a.data.index() != b.data.index()) return false;
  const auto bytes = [](const auto& data) { return raw(data); };
  return std::visit(bytes, a.data) == std::visit(bytes, b.data);
}

// What went wrong with this file, without its name; checks that the message is one line that
// begins with the name.
std::string error_of(const std::string& bytes) {
  try {
    parse(bytes, "dir/bad.npy");
  } catch (const NpyError& error) {
    const std::string message = error.what();
    CHECK(message.starts_with("dir/bad.npy: "));
    CHECK(message.find_first_of(std::string("\n\r\0", 3)) == std::string::npos);
    return message.substr(std::string("dir/bad.npy: ").size());
  }
  return "(none)";
}

template <class Function>
std::string error_from(Function function) {
  try {
    function();
  } catch (const NpyError& error) {
    return error.what();
  }
  return "(none)";
}

// Through memory and through a file.
void check_round_trip(const NpyArray& array) {
  const std::string bytes = serialise(array);
  CHECK(same_bits(parse(bytes), array));

  const TemporaryDirectory directory;
  write_npy(directory / "x.npy", array);
  CHECK(same_bits(read_npy(directory / "x.npy"), array));
  CHECK(std::filesystem::file_size(directory / "x.npy") == bytes.size());
}

template <class T>
std::vector<T> extremes() {
  using limits = std::numeric_limits<T>;
  return {limits::min(), limits::lowest(), limits::max(), T{0}, T{1}, static_cast<T>(-1)};
}

}  // namespace

// ---- round trips ---------------------------------------------------------------------------

TEST_CASE("cpu: npy round trips of every dtype") {
  check_round_trip({{2, 3}, extremes<float>()});
  check_round_trip({{3, 2}, extremes<double>()});
  check_round_trip({{6}, extremes<std::int32_t>()});
  check_round_trip({{6, 1, 1}, extremes<std::int64_t>()});
  check_round_trip({{1, 6}, extremes<std::uint8_t>()});
}

TEST_CASE("cpu: npy round trips keep every bit of floats") {
  const auto f32 = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  const auto f64 = [](std::uint64_t bits) { return std::bit_cast<double>(bits); };
  // quiet and signalling NaN with payloads, infinities, -0, subnormal
  check_round_trip(
      {{8},
       std::vector<float>{f32(0x7fc00001), f32(0xffc12345), f32(0x7f800001), f32(0x7f800000),
                          f32(0xff800000), f32(0x80000000), f32(0x00000001), 1.0f}});
  check_round_trip({{2, 4},
                    std::vector<double>{f64(0x7ff8000000000001), f64(0xfff8123456789abc),
                                        f64(0x7ff0000000000001), f64(0x7ff0000000000000),
                                        f64(0xfff0000000000000), f64(0x8000000000000000),
                                        f64(0x0000000000000001), 1.0}});
}

TEST_CASE("cpu: npy round trips of scalars and empty arrays and many axes") {
  check_round_trip({{}, std::vector<float>{2.5f}});
  check_round_trip({{0}, std::vector<double>{}});
  check_round_trip({{0, 7}, std::vector<std::int32_t>{}});
  check_round_trip({{7, 0, 3}, std::vector<std::uint8_t>{}});
  check_round_trip({std::vector<std::int64_t>(40, 1), std::vector<std::int64_t>{-5}});
}

TEST_CASE("cpu: npy files are what numpy itself writes") {
  // numpy.save of numpy.array([[0, 1, 2], [3, 4, 5]], 'f4'), numpy 2.4
  const std::string f4 =
      "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"s +
      std::string(58, ' ') + "\n" + raw(std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(f4.size() == 128 + 24);
  CHECK(serialise({{2, 3}, std::vector<float>{0, 1, 2, 3, 4, 5}}) == f4);

  const std::string u1 =
      "\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }"s +
      std::string(60, ' ') + "\n\x07\xff";
  CHECK(serialise({{2}, std::vector<std::uint8_t>{7, 255}}) == u1);

  const std::string scalar =
      "\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (), }"s +
      std::string(62, ' ') + "\n\xfe\xff\xff\xff\xff\xff\xff\xff"s;
  CHECK(serialise({{}, std::vector<std::int64_t>{-2}}) == scalar);
}

TEST_CASE("cpu: npy data begin at a multiple of 64 bytes") {
  for (std::size_t rank = 0; rank < 60; ++rank) {
    CAPTURE(rank);
    const std::string bytes =
        serialise({std::vector<std::int64_t>(rank, 1), std::vector<std::uint8_t>{9}});
    CHECK((bytes.size() - 1) % 64 == 0);
    CHECK(bytes[bytes.size() - 2] == '\n');
    CHECK(bytes.back() == 9);
  }
}

TEST_CASE("cpu: npy header longer than 65535 bytes is written as version 2") {
  // "1, " is 3 bytes an axis; around the limit both versions must round trip
  bool seen[2] = {false, false};
  for (std::size_t rank = 21780; rank < 21850; ++rank) {
    CAPTURE(rank);
    const NpyArray array{std::vector<std::int64_t>(rank, 1), std::vector<std::uint8_t>{9}};
    const std::string bytes = serialise(array);
    REQUIRE((bytes[6] == 1 || bytes[6] == 2));
    seen[bytes[6] - 1] = true;
    CHECK((bytes.size() - 1) % 64 == 0);
    CHECK(same_bits(parse(bytes), array));
  }
  CHECK(seen[0]);
  CHECK(seen[1]);
}

// ---- what else is valid --------------------------------------------------------------------

TEST_CASE("cpu: npy versions 1 and 2 and 3 are read") {
  const std::vector<std::int32_t> values = {1, -2, 3};
  for (const char major : {'\1', '\2', '\3'}) {
    CAPTURE(int{major});
    const NpyArray array = parse(npy_bytes(major, header_of("<i4", "(3,)"), raw(values)));
    CHECK(same_bits(array, {{3}, values}));
  }
}

TEST_CASE("cpu: npy headers are read as Python reads them") {
  const std::string data = raw(std::vector<float>{1, 2, 3, 4, 5, 6});
  const NpyArray expected{{2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6}};
  for (
      const std::string& header : {
          "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n"s,
          "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"s,
          "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}\n"s,
          "{'fortran_order':False,'shape':(2,3),'descr':'<f4'}"s,
          "{\"descr\": \"<f4\", 'fortran_order': False, \"shape\": (2, 3), }"s,
          " \t\n{ 'descr'\t: '<f4' ,\n'fortran_order' :\r\nFalse , 'shape' : ( 2 , 3 , ) , } \n"s,
      }) {
    CAPTURE(header);
    CHECK(same_bits(parse(npy_bytes(1, header, data)), expected));
  }
}

TEST_CASE("cpu: npy shapes of every kind are read") {
  const auto shape = [](const std::string& text, std::size_t bytes) {
    return parse(npy_bytes(1, header_of("|u1", text), std::string(bytes, 'x'))).shape;
  };
  using Shape = std::vector<std::int64_t>;
  CHECK(shape("()", 1) == Shape{});
  CHECK(shape("( )", 1) == Shape{});
  CHECK(shape("(3,)", 3) == Shape{3});
  CHECK(shape("(1, 2, 3)", 6) == Shape{1, 2, 3});
  CHECK(shape("(0,)", 0) == Shape{0});
  CHECK(shape("(00, 5)", 0) == Shape{0, 5});
  CHECK(shape("(0, 9223372036854775807)", 0) == Shape{0, kLargest});
}

TEST_CASE("cpu: npy spellings of a dtype are read") {
  const auto dtype = [](const std::string& descr, std::size_t bytes) {
    const NpyArray array = parse(npy_bytes(1, header_of(descr, "()"), std::string(bytes, 'x')));
    return std::string(dtype_name(array));
  };
  for (const std::string order : {"<", "=", ""}) {
    CAPTURE(order);
    CHECK(dtype(order + "f4", 4) == "f4");
    CHECK(dtype(order + "f8", 8) == "f8");
    CHECK(dtype(order + "i4", 4) == "i4");
    CHECK(dtype(order + "i8", 8) == "i8");
  }
  for (const std::string order : {"|", "<", "=", ">", ""}) {
    CAPTURE(order);
    CHECK(dtype(order + "u1", 1) == "u1");
  }
}

// ---- what is not ---------------------------------------------------------------------------

TEST_CASE("cpu: npy prefix that is wrong or cut is named") {
  const std::string good = npy_bytes(1, header_of("|u1", "(2,)"), "ab");
  const std::size_t data_at = good.size() - 2;
  for (std::size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    const std::string error = error_of(good.substr(0, size));
    CHECK(error.starts_with(size < 6         ? "not a .npy file"
                            : size < data_at ? "truncated header"
                                             : "truncated data"));
  }
  for (std::size_t i = 0; i < 6; ++i) {
    CAPTURE(i);
    std::string bad = good;
    bad[i] ^= 0x20;
    CHECK(error_of(bad) == "not a .npy file: it does not begin with the bytes \\x93NUMPY");
  }
  CHECK(error_of("PK\x03\x04 and so on, as .npz files begin").starts_with("not a .npy file"));
}

TEST_CASE("cpu: npy versions that are unknown are named") {
  const std::string good = npy_bytes(1, header_of("|u1", "(2,)"), "ab");
  for (const auto& [major, minor] : {std::pair{0, 0}, {4, 0}, {1, 1}, {2, 9}, {255, 255}}) {
    std::string bad = good;
    bad[6] = static_cast<char>(major);
    bad[7] = static_cast<char>(minor);
    CHECK(error_of(bad) == "unknown format version " + std::to_string(major) + "." +
                               std::to_string(minor) + " (known: 1.0, 2.0, 3.0)");
  }
}

TEST_CASE("cpu: npy header longer than its file is refused before memory is taken") {
  CHECK(error_of("\x93NUMPY\x01\x00\xff\xff{}"s) ==
        "truncated header: expected 65535 bytes, found 2");
  CHECK(error_of("\x93NUMPY\x02\x00\xff\xff\xff\xff{}"s) ==
        "truncated header: expected 4294967295 bytes, found 2");
}

TEST_CASE("cpu: npy data of the wrong length is named with both lengths") {
  const std::string header = header_of("<f8", "(3, 4)");
  CHECK(error_of(npy_bytes(1, header, std::string(88, 'x'))) ==
        "truncated data: expected 96 bytes for [3, 4] of f8, found 88");
  CHECK(error_of(npy_bytes(1, header, std::string(95, 'x'))).ends_with("found 95"));
  CHECK(error_of(npy_bytes(1, header, std::string(97, 'x'))) ==
        "trailing bytes after the data: expected 96 bytes for [3, 4] of f8, found 97");
  CHECK(error_of(npy_bytes(1, header_of("<f4", "(0, 4)"), "x")) ==
        "trailing bytes after the data: expected 0 bytes for [0, 4] of f4, found 1");
  CHECK(error_of(npy_bytes(1, header_of("<f4", "()"), "")) ==
        "truncated data: expected 4 bytes for [] of f4, found 0");
}

TEST_CASE("cpu: npy sizes that are absurd are refused before memory is taken") {
  const auto error = [](const std::string& descr, const std::string& shape) {
    return error_of(npy_bytes(1, header_of(descr, shape), "12345678"));
  };
  CHECK(error("<f8", "(1000000000000,)") ==
        "truncated data: expected 8000000000000 bytes for [1000000000000] of f8, found 8");
  // the number of elements fits but the number of bytes does not
  CHECK(error("<f8", "(2305843009213693952,)") ==
        "the size of [2305843009213693952] of f8 does not fit in 64 bits");
  // 2^32 * 2^32 wraps to 0, and 2^61 + 1 elements of 8 bytes wrap to 8
  CHECK(error("|u1", "(4294967296, 4294967296)").ends_with("does not fit in 64 bits"));
  CHECK(error("<f8", "(2305843009213693953,)").ends_with("does not fit in 64 bits"));
  CHECK(error("|u1", "(9223372036854775807, 3, 0)").ends_with("does not fit in 64 bits"));
  CHECK(error("|u1", "(9223372036854775808,)") ==
        "bad header: size '9223372036854775808' in 'shape' does not fit in 64 bits");
  CHECK(error("|u1", "(" + std::string(100, '9') + ",)").ends_with("does not fit in 64 bits"));
}

TEST_CASE("cpu: npy dtypes that are not supported are named") {
  const auto error = [](const std::string& descr) {
    return error_of(npy_bytes(1, header_of(descr, "(1,)"), "12345678"));
  };
  for (const std::string descr : {"<f2", "|b1", "<i2", "<u4", "|i1", "<c8", "<U3", "|S4", "|O",
                                  "<M8[ns]", "", "<", "f", "<f4 ", "|f4", "<<f4", ">c8"}) {
    CAPTURE(descr);
    CHECK(error(descr) ==
          "dtype '" + descr + "' is not supported (supported: <f4, <f8, <i4, <i8, |u1)");
  }
  for (const std::string descr : {">f4", ">f8", ">i4", ">i8"}) {
    CAPTURE(descr);
    CHECK(error(descr) == "dtype '" + descr + "' is big-endian; only little-endian is read");
  }
  CHECK(error_of(npy_bytes(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
                           "1234")) ==
        "bad header: structured dtypes (a list in 'descr') are not supported");
  // whatever stands in the file, the message stays one printable line of moderate length
  CHECK(error("a\tb\x01\x93" + std::string(100, 'z')) ==
        "dtype 'a?b??" + std::string(35, 'z') +
            "...' is not supported (supported: <f4, <f8, <i4, <i8, |u1)");
}

TEST_CASE("cpu: npy in Fortran order is refused") {
  const std::string header = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }";
  CHECK(error_of(npy_bytes(1, header, "1234"))
            .starts_with("fortran_order is True; only C order is read"));
}

TEST_CASE("cpu: npy headers that are not right are named") {
  const std::string descr = "'descr': '|u1', ", order = "'fortran_order': False, ",
                    shape = "'shape': (1,), ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected '{', found the end of the header"},
      {"   \n", "expected '{', found the end of the header"},
      {"[1, 2]", "expected '{', found '[1, 2]'"},
      {"{}", "no key 'descr'"},
      {"{" + order + shape + "}", "no key 'descr'"},
      {"{" + descr + shape + "}", "no key 'fortran_order'"},
      {"{" + descr + order + "}", "no key 'shape'"},
      {"{" + descr + descr + order + shape + "}", "key 'descr' twice"},
      {"{" + descr + order + order + shape + "}", "key 'fortran_order' twice"},
      {"{" + descr + order + shape + shape + "}", "key 'shape' twice"},
      {"{" + descr + order + shape + "'extra': 1}", "unknown key 'extra'"},
      {"{" + descr + order + "'Shape': (1,)}", "unknown key 'Shape'"},
      {"{" + descr + order + shape, "expected a quoted string, found the end of the header"},
      {"{" + descr + order + "'shape': (1,)", "expected '}', found the end of the header"},
      {"{" + descr + order + shape + ",}", "expected a quoted string, found ',}'"},
      {"{" + descr + order + shape + "} x", "text after the closing brace: 'x'"},
      {"{" + descr + order + shape + "}" + std::string(1, '\0'),
       "text after the closing brace: '?'"},
      {"{descr: '|u1'}", "expected a quoted string, found 'descr: '|u1'}'"},
      {"{'descr' '|u1'}", "expected ':', found ''|u1'}'"},
      {"{'descr': '|u1' " + order + shape + "}", "expected '}', found ''fortran_order'"},
      {"{'descr': |u1}", "expected a quoted string, found '|u1}'"},
      {"{'descr': '|u1}", "a string without its closing quote: ''|u1}'"},
      {"{'descr': '|u1\"}", "a string without its closing quote"},
      {"{'descr': '\\x7cu1'}", "a string with an escape or a line break"},
      {"{'descr': '|u1\n'}", "a string with an escape or a line break"},
      {"{'fortran_order': 0}", "'fortran_order' must be True or False"},
      {"{'fortran_order': false}", "'fortran_order' must be True or False"},
      {"{'fortran_order': 'False'}", "'fortran_order' must be True or False"},
      {"{'fortran_order': Falsey}", "'fortran_order' must be True or False"},
      {"{'fortran_order': }", "'fortran_order' must be True or False"},
      {"{'shape': 3}", "'shape' must be a tuple, found '3}'"},
      {"{'shape': [3]}", "'shape' must be a tuple, found '[3]}'"},
      {"{'shape': (3)}", "'shape' must be a tuple; one size is written (3,)"},
      {"{'shape': (,)}", "sizes in 'shape' must be integers, found ',)}'"},
      {"{'shape': (3,,)}", "sizes in 'shape' must be integers, found ',)}'"},
      {"{'shape': (3 4)}", "expected ',' or ')' in 'shape', found '4)}'"},
      {"{'shape': (3, 4}", "expected ',' or ')' in 'shape', found '}'"},
      {"{'shape': (3,", "sizes in 'shape' must be integers, found the end of the header"},
      {"{'shape': (-3,)}", "negative size '-3' in 'shape'"},
      {"{'shape': (2, -0)}", "negative size '-0' in 'shape'"},
      {"{'shape': (3L,)}", "sizes in 'shape' must be integers, found '3L'"},
      {"{'shape': (3.0,)}", "sizes in 'shape' must be integers, found '3.0'"},
      {"{'shape': (1e3,)}", "sizes in 'shape' must be integers, found '1e3'"},
      {"{'shape': (0x3,)}", "sizes in 'shape' must be integers, found '0x3'"},
      {"{'shape': (03,)}", "sizes in 'shape' must be integers, found '03'"},
      {"{'shape': (+3,)}", "sizes in 'shape' must be integers, found '+3'"},
      {"{'shape': (1_0,)}", "sizes in 'shape' must be integers, found '1_0'"},
      {"{'shape': (None,)}", "sizes in 'shape' must be integers, found 'None'"},
      {"{'shape': ('3',)}", "sizes in 'shape' must be integers, found ''3',)}'"},
      {"{'shape': ((3,),)}", "sizes in 'shape' must be integers, found '(3,),)}'"},
  };
  for (const auto& entry : cases) {
    CAPTURE(entry.first);
    CAPTURE(entry.second);
    const std::string error = error_of(npy_bytes(1, entry.first, "x"));
    CAPTURE(error);
    CHECK(error.starts_with("bad header: " + entry.second));
  }
}

// ---- files ---------------------------------------------------------------------------------

TEST_CASE("cpu: npy files that cannot be read are named with the reason") {
  const TemporaryDirectory directory;
  const auto error = [](const std::filesystem::path& path) {
    return error_from([&] { read_npy(path); });
  };
  const std::filesystem::path missing = directory / "missing.npy",
                              folder = directory / "folder", empty = directory / "empty.npy",
                              pipe = directory / "pipe.npy", below = empty / "x.npy";
  std::filesystem::create_directory(folder);
  std::ofstream{empty};
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error(missing) == missing.string() + ": no such file");
  CHECK(error(folder) == folder.string() + ": is a directory");
  CHECK(error(pipe) == pipe.string() + ": is not a regular file");  // and does not wait
  CHECK(error(empty).starts_with(empty.string() + ": not a .npy file"));
  CHECK(error(below).starts_with(below.string() + ": "));
}

TEST_CASE("cpu: npy files that are malformed are named by their path") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "short.npy";
  std::ofstream(path, std::ios::binary) << npy_bytes(1, header_of("<f4", "(3,)"), "12345678");
  CHECK(error_from([&] { read_npy(path); }) ==
        path.string() + ": truncated data: expected 12 bytes for [3] of f4, found 8");
}

// Sanitizers end the program when asked for memory that no machine has.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
constexpr bool kSanitized = true;
#elif !defined(__has_feature)
constexpr bool kSanitized = false;
#elif __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)  // clang
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST_CASE("cpu: npy file larger than memory is an error") {
  // A hole of 2^60 bytes, as long as the header says. Many file systems refuse it at 2^44.
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "sparse.npy";
  const std::string start = npy_bytes(1, header_of("|u1", "(1152921504606846976,)"), "");
  std::ofstream(path, std::ios::binary) << start;
  CHECK(error_from([&] { read_npy(path); }).starts_with(path.string() + ": truncated data"));
  std::error_code refused;
  std::filesystem::resize_file(path, start.size() + (std::uintmax_t{1} << 60), refused);
  if (!refused && !kSanitized) {
    CHECK(error_from([&] { read_npy(path); }).starts_with(path.string() + ": no memory"));
  }
}

TEST_CASE("cpu: npy files that cannot be written are named with the reason") {
  const TemporaryDirectory directory;
  const NpyArray array{{2}, std::vector<float>{1, 2}};
  const std::filesystem::path nowhere = directory / "missing/x.npy";
  CHECK(error_from([&] { write_npy(nowhere, array); }) ==
        nowhere.string() + ": cannot be opened for writing: No such file or directory");
  const std::filesystem::path folder = directory / "folder";
  std::filesystem::create_directory(folder);
  CHECK(error_from([&] {
          write_npy(folder, array);
        }).starts_with(folder.string() + ": cannot be opened for writing: "));
}

TEST_CASE("cpu: npy written to a full disk is an error") {
  // on Linux, writing to /dev/full always fails as a full disk does
  if (std::filesystem::exists("/dev/full")) {
    const NpyArray small{{2}, std::vector<float>{1, 2}};
    const NpyArray large{{100000}, std::vector<float>(100000)};
    for (const NpyArray& array : {small, large}) {
      CHECK(error_from([&] { write_npy("/dev/full", array); }) ==
            "/dev/full: could not be written whole: No space left on device");
      std::ofstream out("/dev/full");  // a buffered stream: the error shows when it is flushed
      CHECK(error_from([&] {
              write_npy(out, array, "x.npy");
            }).starts_with("x.npy: could not be written whole: No space"));
    }
  }

  // anywhere: a stream that takes a number of bytes and no more
  struct Limited : std::streambuf {
    explicit Limited(std::size_t room) : left(room) {}
    int_type overflow(int_type c) override {
      if (left == 0) return traits_type::eof();
      --left;
      return c;
    }
    std::size_t left;
  };
  const NpyArray array{{2}, std::vector<std::uint8_t>{1, 2}};
  const std::size_t whole = serialise(array).size();
  for (std::size_t room = 0; room <= whole; ++room) {
    CAPTURE(room);
    Limited buffer(room);
    std::ostream out(&buffer);
    const std::string error = error_from([&] { write_npy(out, array, "x.npy"); });
    CHECK((error == "(none)") == (room == whole));
    CHECK((room == whole || error.starts_with("x.npy: could not be written whole")));
  }
}

TEST_CASE("cpu: npy refuses to write an array whose shape and data disagree") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.npy";
  write_npy(path, {{1}, std::vector<float>{1}});
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{}, {3}, {2, 2}, {0}, {-2}, {-1, -2}, {kLargest, 4}}) {
    CAPTURE(shape_text(shape));
    const NpyArray bad{shape, std::vector<float>{1, 2}};
    CHECK_THROWS_AS(write_npy(path, bad), std::invalid_argument);
    CHECK_THROWS_AS(serialise(bad), std::invalid_argument);
  }
  CHECK(
      same_bits(read_npy(path), {{1}, std::vector<float>{1}}));  // the old file is still there
}

TEST_CASE("cpu: npy write replaces an existing file") {
  const TemporaryDirectory directory;
  write_npy(directory / "x.npy", {{1000}, std::vector<double>(1000)});
  const NpyArray array{{2}, std::vector<float>{1, 2}};
  write_npy(directory / "x.npy", array);
  CHECK(same_bits(read_npy(directory / "x.npy"), array));
}

// ---- names and matrices --------------------------------------------------------------------

TEST_CASE("cpu: npy names of shapes and dtypes") {
  CHECK(shape_text({}) == "[]");
  CHECK(shape_text(std::vector<std::int64_t>{3}) == "[3]");
  CHECK(shape_text(std::vector<std::int64_t>{3, 0, -4}) == "[3, 0, -4]");
  CHECK(dtype_name({{0}, std::vector<float>{}}) == "f4"s);
  CHECK(dtype_name({{0}, std::vector<double>{}}) == "f8"s);
  CHECK(dtype_name({{0}, std::vector<std::int32_t>{}}) == "i4"s);
  CHECK(dtype_name({{0}, std::vector<std::int64_t>{}}) == "i8"s);
  CHECK(dtype_name({{0}, std::vector<std::uint8_t>{}}) == "u1"s);
}

TEST_CASE("cpu: npy arrays become matrices and back") {
  const NpyArray array{{2, 3}, std::vector<float>{0, 1, 2, 3, 4, 5}};
  const Matrix<float> M = to_matrix<float>(array, "x.npy");
  CHECK(M.rows() == 2);
  CHECK(M.cols() == 3);
  CHECK(M(0, 2) == 2.0f);
  CHECK(M(1, 0) == 3.0f);
  CHECK(same_bits(to_npy(M), array));
  CHECK(same_bits(to_npy(M.middleCols(1, 1)), {{2, 1}, std::vector<float>{1, 4}}));
  CHECK(same_bits(to_npy(2.0f * M), {{2, 3}, std::vector<float>{0, 2, 4, 6, 8, 10}}));
  CHECK(same_bits(to_npy(M.transpose()), {{3, 2}, std::vector<float>{0, 3, 1, 4, 2, 5}}));
  CHECK(same_bits(to_npy(M.row(1)), {{3}, std::vector<float>{3, 4, 5}}));
  CHECK(same_bits(to_npy(M.col(1)), {{2}, std::vector<float>{1, 4}}));

  const NpyArray numbers{{3}, std::vector<std::int64_t>{7, 8, 9}};
  const Vector<std::int64_t> v = to_vector<std::int64_t>(numbers, "x.npy");
  CHECK(v.sum() == 24);
  CHECK(v(0) == 7);
  CHECK(same_bits(to_npy(v), numbers));

  // a function's arguments keep their rank
  const auto of_matrix = [](MatrixIn<float> A) { return to_npy(A); };
  const auto of_vector = [](VectorIn<float> a) { return to_npy(a); };
  CHECK(same_bits(of_matrix(M.middleRows(1, 1)), {{1, 3}, std::vector<float>{3, 4, 5}}));
  CHECK(same_bits(of_vector(M.row(1).transpose()), {{3}, std::vector<float>{3, 4, 5}}));
}

TEST_CASE("cpu: npy arrays without elements become matrices and back") {
  for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 3}, {3, 0}, {0, 0}}) {
    const NpyArray array{{rows, cols}, std::vector<double>{}};
    const Matrix<double> M = to_matrix<double>(array, "x.npy");
    CHECK(M.rows() == rows);
    CHECK(M.cols() == cols);
    CHECK(same_bits(to_npy(M), array));
  }
  const NpyArray nothing{{0}, std::vector<float>{}};
  CHECK(to_vector<float>(nothing, "x.npy").size() == 0);
  CHECK(same_bits(to_npy(Vector<float>()), nothing));
}

TEST_CASE("cpu: npy arrays of another rank or dtype do not become matrices") {
  const NpyArray array{{1, 2, 3}, std::vector<float>(6)};
  CHECK(error_from([&] { to_matrix<float>(array, "q.npy"); }) ==
        "q.npy: expected a shape [N, d], found [1, 2, 3]");
  CHECK(error_from([&] { to_vector<float>(array, "q.npy"); }) ==
        "q.npy: expected a shape [N], found [1, 2, 3]");
  CHECK(error_from([&] { to_matrix<double>(array, "q.npy"); }) ==
        "q.npy: expected dtype f8, found f4");
  CHECK(error_from([&] {
          to_vector<std::int32_t>({{1}, std::vector<float>(1)}, "q.npy");
        }) == "q.npy: expected dtype i4, found f4");
  const NpyArray inconsistent{{2, 3}, std::vector<float>(5)};
  CHECK_THROWS_AS(to_matrix<float>(inconsistent, "q.npy"), std::invalid_argument);
}

}  // namespace flash_steps

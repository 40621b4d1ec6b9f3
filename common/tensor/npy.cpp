#include "common/tensor/npy.hpp"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <limits>
#include <optional>
#include <streambuf>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/element_count.hpp"
#include "common/tensor/npy_header.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

// Data and lengths are little-endian in the files handled here and are copied as they are.
static_assert(std::endian::native == std::endian::little, "only little-endian hosts");

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kAlignment = 64;  // of the data, counted from the start of the file

using Data = decltype(NpyArray::data);

[[noreturn]] void fail(const std::string& name, const std::string& reason) {
  throw NpyError(name + ": " + reason);
}

// ---- reading -------------------------------------------------------------------------------

// A stream of known length. Lengths are checked before anything is allocated or read, so that a
// header cannot ask for more than the file has.
class Source {
 public:
  Source(std::istream& in, std::uint64_t size, const std::string& name)
      : in_(in), left_(size), name_(name) {}

  std::uint64_t left() const { return left_; }

  void read(void* to, std::uint64_t bytes) {
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (static_cast<std::uint64_t>(in_.gcount()) != bytes) {
      fail(name_, "could not be read to its end");  // it changed, or the disk failed
    }
    left_ -= bytes;
  }

 private:
  std::istream& in_;
  std::uint64_t left_;
  const std::string& name_;
};

// One little-endian field of the preamble.
template <class T>
T read_field(Source& source, const std::string& name) {
  if (source.left() < sizeof(T)) fail(name, "truncated header: the file ends inside it");
  T value;
  source.read(&value, sizeof value);
  return value;
}

void read_magic(Source& source, const std::string& name) {
  std::array<char, kMagic.size()> magic{};
  if (source.left() >= magic.size()) source.read(magic.data(), magic.size());
  if (std::string_view(magic.data(), magic.size()) != kMagic) {
    fail(name, "not a .npy file: it does not begin with the bytes \\x93NUMPY");
  }
}

std::uint64_t read_header_length(Source& source, const std::string& name) {
  const int major = read_field<std::uint8_t>(source, name);
  const int minor = read_field<std::uint8_t>(source, name);
  if (major < 1 || major > 3 || minor != 0) {
    fail(name, "unknown format version " + std::to_string(major) + "." + std::to_string(minor) +
                   " (known: 1.0, 2.0, 3.0)");
  }
  if (major == 1) return read_field<std::uint16_t>(source, name);
  return read_field<std::uint32_t>(source, name);
}

std::string read_header_text(Source& source, const std::string& name) {
  const std::uint64_t length = read_header_length(source, name);
  if (source.left() < length) {
    fail(name, "truncated header: expected " + std::to_string(length) + " bytes, found " +
                   std::to_string(source.left()));
  }
  std::string text(length, '\0');
  source.read(text.data(), length);
  return text;
}

// An empty vector of the type that descr names. '=' and no prefix mean the machine's byte
// order, which is little-endian; the order of single bytes does not matter.
Data empty_data(const std::string& descr, const std::string& name) {
  const bool prefixed = descr.find_first_of("<>=|") == 0;
  const char order = prefixed ? descr[0] : '=';
  const std::string type = prefixed ? descr.substr(1) : descr;
  if (type == "u1") return std::vector<std::uint8_t>();

  std::optional<Data> data;
  if (type == "f4") data = std::vector<float>();
  if (type == "f8") data = std::vector<double>();
  if (type == "i4") data = std::vector<std::int32_t>();
  if (type == "i8") data = std::vector<std::int64_t>();
  if (data && order == '>') {
    fail(name, "dtype " + detail::shown(descr) + " is big-endian; only little-endian is read");
  }
  if (!data || order == '|') {
    fail(name, "dtype " + detail::shown(descr) +
                   " is not supported (supported: <f4, <f8, <i4, <i8, |u1)");
  }
  return *data;
}

// The number of elements, once it is known that the file holds exactly that many.
std::size_t checked_count(const NpyArray& array, std::uint64_t element_bytes,
                          std::uint64_t found, const std::string& name) {
  const std::string what = shape_text(array.shape) + " of " + dtype_name(array);
  const std::optional<std::int64_t> count = element_count(array.shape);
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!count || static_cast<std::uint64_t>(*count) > limit / element_bytes) {
    fail(name, "the size of " + what + " does not fit in 64 bits");
  }
  const std::uint64_t expected = static_cast<std::uint64_t>(*count) * element_bytes;
  const std::string sizes = "expected " + std::to_string(expected) + " bytes for " + what +
                            ", found " + std::to_string(found);
  if (found < expected) fail(name, "truncated data: " + sizes);
  if (found > expected) fail(name, "trailing bytes after the data: " + sizes);
  return static_cast<std::size_t>(*count);
}

template <class T>
void read_data(Source& source, std::vector<T>& data, std::size_t count,
               const std::string& name) {
  try {
    data.resize(count);
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(name, "no memory for its " + std::to_string(source.left()) + " bytes of data");
  }
  source.read(data.data(), source.left());
}

NpyArray read_array(std::istream& in, std::uint64_t size, const std::string& name) {
  Source source(in, size, name);
  read_magic(source, name);
  const detail::NpyHeader header =
      detail::parse_npy_header(read_header_text(source, name), name);
  if (header.fortran_order) {
    fail(name,
         "fortran_order is True; only C order is read (numpy.ascontiguousarray gives it)");
  }
  NpyArray array{header.shape, empty_data(header.descr, name)};
  std::visit(
      [&]<class T>(std::vector<T>& data) {
        const std::size_t count = checked_count(array, sizeof(T), source.left(), name);
        read_data(source, data, count, name);
      },
      array.data);
  return array;
}

// Bytes in memory as a stream, without copying them.
class ByteBuffer : public std::streambuf {
 public:
  explicit ByteBuffer(std::span<const std::byte> bytes) {
    // streambuf wants char*, but a buffer that is only read from does not write through it
    auto* begin = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
    setg(begin, begin, begin + bytes.size());
  }
};

std::string last_error() {
  return errno != 0 ? std::generic_category().message(errno) : "unknown error";
}

std::uint64_t regular_file_size(const std::filesystem::path& path, const std::string& name) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(name, "no such file");
  if (error) fail(name, "cannot be opened: " + error.message());
  if (std::filesystem::is_directory(status)) fail(name, "is a directory");
  if (!std::filesystem::is_regular_file(status)) fail(name, "is not a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail(name, "cannot be opened: " + error.message());
  return size;
}

// ---- writing -------------------------------------------------------------------------------

std::string header_text(const NpyArray& array) {
  std::string sizes;
  for (const std::int64_t size : array.shape) sizes += std::to_string(size) + ", ";
  if (array.shape.size() == 1) sizes = std::to_string(array.shape[0]) + ",";
  if (array.shape.size() > 1) sizes.resize(sizes.size() - 2);
  const std::string order =
      std::holds_alternative<std::vector<std::uint8_t>>(array.data) ? "|" : "<";
  return "{'descr': '" + order + dtype_name(array) + "', 'fortran_order': False, 'shape': (" +
         sizes + "), }";
}

// A length field as it stands in the file.
template <class T>
std::string field(std::uint64_t value) {
  const auto narrow = static_cast<T>(value);
  std::string bytes(sizeof narrow, '\0');
  std::memcpy(bytes.data(), &narrow, sizeof narrow);
  return bytes;
}

// Everything before the data: magic, version, length, then the text, padded with spaces and
// ended by a line break so that the whole is a multiple of kAlignment.
std::string preamble(const NpyArray& array) {
  const std::string text = header_text(array);
  const auto padded_length = [&](std::uint64_t before) {
    const auto whole = static_cast<std::int64_t>(before + text.size() + 1);
    return static_cast<std::uint64_t>(ceil_div(whole, kAlignment)) * kAlignment - before;
  };
  std::string start(kMagic);
  std::uint64_t length = padded_length(kMagic.size() + 2 + sizeof(std::uint16_t));
  if (length <= std::numeric_limits<std::uint16_t>::max()) {
    start += std::string("\x01\x00", 2) + field<std::uint16_t>(length);
  } else {
    length = padded_length(kMagic.size() + 2 + sizeof(std::uint32_t));
    require(length <= std::numeric_limits<std::uint32_t>::max(), "the shape is too long");
    start += std::string("\x02\x00", 2) + field<std::uint32_t>(length);
  }
  return start + text + std::string(length - text.size() - 1, ' ') + "\n";
}

}  // namespace

NpyArray read_npy(const std::filesystem::path& path) {
  const std::string name = path.string();
  const std::uint64_t size = regular_file_size(path, name);
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(name, "cannot be opened: " + last_error());
  return read_array(in, size, name);
}

NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  ByteBuffer buffer(bytes);
  std::istream in(&buffer);
  return read_array(in, bytes.size(), name);
}

void write_npy(std::ostream& out, const NpyArray& array, const std::string& name) {
  check_consistent(array);
  errno = 0;
  const std::string start = preamble(array);
  out.write(start.data(), static_cast<std::streamsize>(start.size()));
  std::visit(
      [&]<class T>(const std::vector<T>& data) {
        out.write(reinterpret_cast<const char*>(data.data()),
                  static_cast<std::streamsize>(data.size() * sizeof(T)));
      },
      array.data);
  out.flush();  // a full disk may show only here
  if (!out) throw NpyWriteError(name + ": could not be written whole: " + last_error());
}

void write_npy(const std::filesystem::path& path, const NpyArray& array) {
  const std::string name = path.string();
  check_consistent(array);               // before an existing file is replaced
  if (std::filesystem::is_fifo(path)) {  // opening one waits for a reader, perhaps for ever
    throw NpyWriteError(name + ": cannot be opened for writing: it is a FIFO");
  }
  errno = 0;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!out) throw NpyWriteError(name + ": cannot be opened for writing: " + last_error());
  write_npy(out, array, name);
  errno = 0;
  out.close();
  if (!out) throw NpyWriteError(name + ": could not be written whole: " + last_error());
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t size : shape)
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

const char* dtype_name(const NpyArray& array) {
  return std::visit([]<class T>(const std::vector<T>&) { return dtype_name<T>(); }, array.data);
}

void check_consistent(const NpyArray& array) {
  const std::size_t found =
      std::visit([](const auto& data) { return data.size(); }, array.data);
  const std::optional<std::int64_t> expected = element_count(array.shape);
  if (!expected || static_cast<std::uint64_t>(*expected) != found) {
    throw std::invalid_argument("the shape " + shape_text(array.shape) + " does not hold " +
                                std::to_string(found) + " elements");
  }
}

}  // namespace flash_steps

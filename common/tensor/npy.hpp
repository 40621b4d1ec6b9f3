// Arrays in files: numpy's .npy format, versions 1.0 to 3.0, C order, little-endian.
//
// Real data comes in and results go out this way, so that any tool that reads numpy files can
// check them. A malformed file is an NpyError of one sentence that begins with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace flash_steps {

// "q.npy: truncated data: expected 48 bytes for [3, 4] of f4, found 40".
class NpyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file that could not be written: no fault of anybody's input.
class NpyWriteError : public NpyError {
 public:
  using NpyError::NpyError;
};

// An array of any rank, in C order (the last size varies fastest). shape [] is a scalar, of one
// element; a size may be 0. The alternative that data holds is the dtype, even when it is
// empty.
struct NpyArray {
  std::vector<std::int64_t> shape;
  std::variant<std::vector<float>, std::vector<double>, std::vector<std::int32_t>,
               std::vector<std::int64_t>, std::vector<std::uint8_t>>
      data;
};

// Reads a file. The dtypes are f4, f8, i4, i8 and u1.
// Throws NpyError, also if the file is missing, unreadable, not a regular file, in Fortran
// order, big-endian, of another dtype, or has bytes too few or too many. Memory for the data is
// taken only after the file's size was found to match its header.
NpyArray read_npy(const std::filesystem::path& path);

// The same from the bytes of a file; errors begin with name.
NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name);

// Writes version 1.0 (2.0 if the shape's text needs a longer header), data aligned to 64 bytes.
// An existing file is replaced. Throws NpyWriteError with the reason if the file cannot be
// opened or written whole (what is left of it is then not valid), and std::invalid_argument if
// the shape and the number of elements disagree.
void write_npy(const std::filesystem::path& path, const NpyArray& array);

// The same to a binary stream; errors begin with name.
void write_npy(std::ostream& out, const NpyArray& array, const std::string& name);

// "[3, 4]"; "[]" for a scalar.
std::string shape_text(std::span<const std::int64_t> shape);

// The name of an element type: "f4", "f8", "i4", "i8" or "u1".
template <class T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) {
    return "f4";
  } else if constexpr (std::is_same_v<T, double>) {
    return "f8";
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return "i4";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return "i8";
  } else {
    static_assert(std::is_same_v<T, std::uint8_t>, "no dtype for this type");
    return "u1";
  }
}

// The name of the array's element type.
const char* dtype_name(const NpyArray& array);

// Throws std::invalid_argument unless the array has as many elements as its shape says.
void check_consistent(const NpyArray& array);

}  // namespace flash_steps

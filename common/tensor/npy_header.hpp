// The header of a .npy file: a Python dictionary literal,
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// For npy.cpp alone; programs include npy.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flash_steps::detail {

struct NpyHeader {
  std::string descr;  // as written: "<f4"
  bool fortran_order = false;
  std::vector<std::int64_t> shape;  // sizes >= 0
};

// Parses the text between the length field and the data. Keys in any order, either kind of
// quotes, white space and a trailing comma as Python allows; all three keys exactly once and no
// other. Throws NpyError, beginning with name.
NpyHeader parse_npy_header(std::string_view text, const std::string& name);

// The text in quotes for an error message: cut at 40 characters, unprintable ones shown as '?'.
std::string shown(std::string_view text);

}  // namespace flash_steps::detail

// Input files, and the checks on them that all chapters share. Each failure is a UsageError
// that names the file, the dimension, what was expected and what was found.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "common/tensor/npy.hpp"

namespace flash_steps::cli {

// An array and the name of the file that it came from.
struct Input {
  std::string file;
  NpyArray array;
};

// What a file holds, which decides the types that it may have.
enum class Content {
  kData,   // f4 or f8
  kTable,  // i4 or i8
  kMask,   // u1
};

// Reads the .npy file `path`, given by `option`.
Input read_input(const std::string& path, const std::string& option,
                 Content content = Content::kData);

// Calls run(float{}) for data that is f4, run(double{}) for f8.
template <class Run>
void with_dtype(const Input& input, const Run& run) {
  if (std::holds_alternative<std::vector<double>>(input.array.data)) return run(double{});
  run(float{});
}

// Files that are computed with together have one type: "k.npy is f8, but q.npy is f4".
void require_same_dtype(const std::vector<const Input*>& inputs);

// The sizes that the inputs agree on, by name:
//
//   cli::Dimensions sizes;
//   sizes.require(q, {"Nq", "d"});
//   sizes.require(k, {"Nk", "d"});  // "k.npy: dimension 1 (d) is 32, but q.npy has d = 64"
//   sizes["Nk"]
class Dimensions {
 public:
  // The array has these dimensions. A name that was seen before must have the same size as
  // then. A name that is a number, as in {"2", "blocks"}, is the size itself.
  void require(const Input& input, const std::vector<std::string>& names);

  // The size of a dimension seen before is in [min, max].
  void require_range(const std::string& name, std::int64_t min, std::int64_t max) const;

  // The size of a dimension seen before.
  std::int64_t operator[](const std::string& name) const { return seen_.at(name).size; }

 private:
  struct Seen {
    std::int64_t size;
    std::string file;
    std::size_t index;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace flash_steps::cli

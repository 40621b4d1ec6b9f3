// Fuzzing parse_npy: whatever the bytes, an array or an NpyError of one line, and an array that
// was read is written and read back to the same bits.
//
// With clang, as a libFuzzer target:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I . tests/fuzz/npy_fuzz.cpp
//           common/tensor/npy.cpp common/tensor/npy_header.cpp -o npy_fuzz
//   ./npy_fuzz -max_total_time=120 new_corpus/ tests/fuzz/corpus/npy/
// With any compiler: -DFLASH_STEPS_FUZZ_STANDALONE adds a main that replays the corpus and then
// random changes of it:
//   ./npy_fuzz -runs=200000 -seed=1 tests/fuzz/corpus/npy/
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "common/tensor/npy.hpp"

namespace flash_steps {

namespace {

std::uint64_t arrays_read = 0;

// Ends the program where a fuzzer sees it.
void expect(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "npy_fuzz: %s\n", what);
  std::abort();
}

void check_message(const std::string& message) {
  expect(message.starts_with("fuzz: "), "an error does not begin with the file's name");
  expect(message.size() > 10 && message.size() < 100000, "an error says nothing or too much");
  for (const char c : message) expect(' ' <= c && c <= '~', "an error is not one clean line");
}

std::string data_bytes(const NpyArray& array) {
  const auto copy = []<class T>(const std::vector<T>& data) {
    std::string bytes(data.size() * sizeof(T), '\0');
    if (!data.empty()) std::memcpy(bytes.data(), data.data(), bytes.size());
    return bytes;
  };
  return std::visit(copy, array.data);
}

void check_round_trip(std::span<const std::byte> input, const NpyArray& array) {
  const std::string data = data_bytes(array);
  expect(data.size() <= input.size(), "more data than the file holds");
  const std::span<const std::byte> tail = input.last(data.size());
  expect(data.empty() || std::memcmp(tail.data(), data.data(), data.size()) == 0,
         "the data are not the file's last bytes");

  std::ostringstream out;
  write_npy(out, array, "fuzz");
  const std::string written = out.str();
  const NpyArray again = parse_npy(std::as_bytes(std::span(written)), "fuzz");
  expect(again.shape == array.shape, "another shape after writing and reading");
  expect(again.data.index() == array.data.index(), "another dtype after writing and reading");
  expect(data_bytes(again) == data, "other data after writing and reading");
}

}  // namespace

}  // namespace flash_steps

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  flash_steps::NpyArray array;
  try {
    array = flash_steps::parse_npy(input, "fuzz");
  } catch (const flash_steps::NpyError& error) {
    flash_steps::check_message(error.what());
    return 0;
  }
  ++flash_steps::arrays_read;
  flash_steps::check_round_trip(input, array);
  return 0;
}

#ifdef FLASH_STEPS_FUZZ_STANDALONE

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  flash_steps::expect(in.good(), "a corpus file cannot be opened");
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// Sorted by name: the order of a directory's entries differs from machine to machine.
std::vector<Bytes> read_corpus(const std::vector<std::filesystem::path>& places) {
  std::vector<std::filesystem::path> files;
  for (const auto& place : places) {
    if (!std::filesystem::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  std::transform(files.begin(), files.end(), std::back_inserter(corpus), read_file);
  return corpus;
}

// One small change: a bit, a byte of the format's own alphabet, a cut, a repeat, or an end.
void change(Bytes& bytes, std::mt19937_64& random) {
  constexpr std::string_view alphabet = "{}()[]',:\" \n\\0123456789-L.TFdfiu<>=|\x93\xff";
  const auto below = [&](std::size_t limit) {  // 0 for limit 0
    return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
  };
  const std::size_t at = below(bytes.size());
  const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const auto length =
      static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(bytes.size() - at, 16)));
  const auto letter = static_cast<std::uint8_t>(alphabet[below(alphabet.size())]);
  switch (bytes.empty() ? 2 : below(6)) {
    case 0:
      bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
      break;
    case 1:
      bytes[at] = letter;
      break;
    case 2:
      bytes.insert(here, letter);
      break;
    case 3:
      bytes.erase(here, here + length);
      break;
    case 4: {
      const Bytes part(here, here + length);
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())),
                   part.begin(), part.end());
      break;
    }
    default:
      bytes.resize(at);
      break;
  }
}

}  // namespace

// Usage: npy_fuzz [-runs=N] [-seed=S] FILE_OR_DIRECTORY...; the same seed makes the same
// changes.
int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  std::vector<std::filesystem::path> places;
  for (const std::string_view argument : std::span(argv + 1, argv + argc)) {
    if (argument.starts_with("-runs=")) {
      runs = std::strtoull(argument.data() + 6, nullptr, 10);
    } else if (argument.starts_with("-seed=")) {
      seed = std::strtoull(argument.data() + 6, nullptr, 10);
    } else {
      places.emplace_back(argument);
    }
  }
  const std::vector<Bytes> corpus = read_corpus(places);
  flash_steps::expect(!corpus.empty(), "no corpus: name a file or a directory that has files");
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());

  flash_steps::expect(flash_steps::arrays_read > 0, "no file of the corpus is valid");

  std::printf("npy_fuzz: %zu files, seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // before a crash
  std::mt19937_64 random(seed);
  for (std::uint64_t run = 0; run < runs; ++run) {
    Bytes bytes = corpus[random() % corpus.size()];
    for (std::uint64_t left = 1 + random() % 4; left > 0; --left) change(bytes, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("npy_fuzz: %llu runs, no failure\n", static_cast<unsigned long long>(runs));
  return 0;
}

#endif

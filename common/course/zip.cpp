#include "common/course/zip.hpp"

#include <array>

#include "common/tensor/require.hpp"

namespace flash_steps::course {
namespace {

// Numbers are little-endian.
void put(std::string& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
}

// The fields that stand both in front of a file and in the directory at the end.
std::string common_fields(const ZipEntry& entry) {
  constexpr int kVersion = 20, kNoFlags = 0, kStored = 0, kMidnight = 0, kFirstOf1980 = 0x21;
  std::string fields;
  for (const int value : {kVersion, kNoFlags, kStored, kMidnight, kFirstOf1980}) {
    put(fields, static_cast<std::uint64_t>(value), 2);
  }
  put(fields, crc32(entry.text), 4);
  put(fields, entry.text.size(), 4);  // compressed
  put(fields, entry.text.size(), 4);  // and not
  put(fields, entry.path.size(), 2);
  put(fields, 0, 2);  // no extra field
  return fields;
}

std::string directory_entry(const ZipEntry& entry, std::uint64_t offset) {
  constexpr std::uint64_t kUnix = 3 << 8 | 20, kRegularFile = 0100000;
  std::string bytes = "PK\1\2";
  put(bytes, kUnix, 2);  // so that the permissions below are read
  bytes += common_fields(entry);
  put(bytes, 0, 2);  // no comment
  put(bytes, 0, 2);  // the first disk
  put(bytes, 0, 2);  // internal attributes
  put(bytes, (kRegularFile | (entry.executable ? 0755u : 0644u)) << 16, 4);
  put(bytes, offset, 4);
  return bytes + entry.path;
}

}  // namespace

std::uint32_t crc32(const std::string& bytes) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0u);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string make_zip(const std::vector<ZipEntry>& entries) {
  require(entries.size() <= 0xFFFF, "a plain zip archive holds at most 65535 files");
  std::string bytes, directory;
  for (const ZipEntry& entry : entries) {
    require(bytes.size() + entry.text.size() < 0xFFFFFFFFu,
            "a plain zip archive holds at most 4 GiB");
    directory += directory_entry(entry, bytes.size());
    bytes += "PK\3\4" + common_fields(entry) + entry.path + entry.text;
  }
  const std::uint64_t begin = bytes.size(), count = entries.size();
  bytes += directory + "PK\5\6";
  put(bytes, 0, 4);  // this disk, and the directory's
  put(bytes, count, 2);
  put(bytes, count, 2);
  put(bytes, directory.size(), 4);
  put(bytes, begin, 4);
  put(bytes, 0, 2);  // no comment
  return bytes;
}

}  // namespace flash_steps::course

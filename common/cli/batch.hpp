// A batch of heads for the executables of batched chapters: from files, or random.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cli/common_options.hpp"
#include "common/cli/error.hpp"
#include "common/cli/qkv.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/heads_array.hpp"
#include "common/tensor/npy_matrix.hpp"

namespace flash_steps::cli {

// --q --k --v, all or none, or --batch --heads --kv-heads --n --nk --d --seed for random input.
inline void add_batch_input(Options& options, QkvFiles& files, CommonOptions& common) {
  add_qkv(options, files, "[B, H, Nq, d] or [Nq, d]", "[B, Hkv, Nk, d] or [Nk, d]");
  add_batch(options, common);
  add_sizes(options, common);
  options.exclusive({"--q"}, {"--batch", "--heads", "--kv-heads", "--n", "--nk", "--d"});
}

// Reads a file of heads; [N, d] is taken as [1, 1, N, d]. *rank is what the file has.
inline Input read_heads(const std::string& path, const std::string& option,
                        std::size_t* rank = nullptr) {
  Input input = read_input(path, option);
  std::vector<std::int64_t>& shape = input.array.shape;
  if (rank) *rank = shape.size();
  if (shape.size() == 2) shape.insert(shape.begin(), {1, 1});
  return input;
}

template <class T>
HeadsArray<T> to_heads(const Input& input) {
  const std::vector<T>& data = checked_data<T>(input.array, 4, "[B, H, N, d]", input.file);
  const auto& shape = input.array.shape;
  HeadsArray<T> heads(shape[0], shape[1], shape[2], shape[3]);
  heads.elements() = data;
  return heads;
}

// Query heads share K/V heads in groups of one size. Throws UsageError, which begins with the
// name of the K/V heads' file if they have one.
inline void require_groups(std::int64_t heads, std::int64_t kv_heads,
                           const std::string& file = "") {
  if (kv_heads > 0 ? heads % kv_heads == 0 : heads == 0) return;
  throw UsageError((file.empty() ? "" : file + ": ") +
                   "the number of K/V heads must divide the number of query heads, found " +
                   std::to_string(kv_heads) + " for " + std::to_string(heads));
}

// A random batch of the sizes on the command line. Throws UsageError for heads that do not
// group.
inline Batch<float> random_batch(const CommonOptions& common) {
  const std::int64_t Hkv = common.kv_heads.value_or(common.heads);
  require_groups(common.heads, Hkv);
  return flash_steps::random_batch<float>(common.batch, common.heads, Hkv, common.n,
                                          common.nk.value_or(common.n), common.d, common.seed);
}

// Calls run(Batch<float>), or run(Batch<double>) for f8 files. Throws UsageError for files
// whose types or shapes do not fit, a head dimension beyond 256, or heads that do not group.
template <class Run>
void with_batch(const QkvFiles& files, const CommonOptions& common, const Run& run) {
  if (!files.q) return run(random_batch(common));
  std::size_t rank = 4;
  const Input q = read_heads(*files.q, "--q", &rank), k = read_heads(*files.k, "--k"),
              v = read_heads(*files.v, "--v");
  const Dimensions sizes = require_qkv(q, k, v, {"B", "H", "Nq", "d"}, {"B", "Hkv", "Nk", "d"});
  require_groups(sizes["H"], sizes["Hkv"], k.file);
  with_dtype(q, [&]<class T>(T) {
    run(Batch<T>{to_heads<T>(q), to_heads<T>(k), to_heads<T>(v), rank});
  });
}

// [B, H, N, d], or [N, d] if the rank is 2 (then B = H = 1).
template <class T>
NpyArray heads_to_npy(const HeadsArray<T>& heads, std::size_t rank) {
  if (rank == 2) return {{heads.N(), heads.d()}, heads.elements()};
  return {{heads.B(), heads.H(), heads.N(), heads.d()}, heads.elements()};
}

// One number a row, such as LSE: (B * H, N) as [B, H, N], or [N] if the rank is 2.
template <class T>
NpyArray rows_to_npy(const Matrix<T>& rows, std::int64_t B, std::int64_t H, std::size_t rank) {
  NpyArray array = to_npy(rows);
  if (rank == 2) {
    array.shape = {rows.cols()};
  } else {
    array.shape = {B, H, rows.cols()};
  }
  return array;
}

}  // namespace flash_steps::cli

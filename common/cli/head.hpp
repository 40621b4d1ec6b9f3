// One head for the executables of chapters that compute one: from files, or random.
#pragma once

#include "common/cli/common_options.hpp"
#include "common/cli/qkv.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/npy_matrix.hpp"

namespace flash_steps::cli {

// --q --k --v, all or none, or --n --nk --d --seed for random input.
inline void add_head(Options& options, QkvFiles& files, CommonOptions& common) {
  add_qkv(options, files, "[Nq, d]", "[Nk, d]");
  add_sizes(options, common);
  options.exclusive({"--q"}, {"--n", "--nk", "--d"});
}

// Calls run(Head<float>), or run(Head<double>) for f8 files. Throws UsageError for files whose
// types or shapes do not fit, or a head dimension beyond 256.
template <class Run>
void with_head(const QkvFiles& files, const CommonOptions& common, const Run& run) {
  if (!files.q) {
    return run(random_head(common.n, common.nk.value_or(common.n), common.d, common.seed));
  }
  const Input q = read_input(*files.q, "--q"), k = read_input(*files.k, "--k"),
              v = read_input(*files.v, "--v");
  require_qkv(q, k, v, {"Nq", "d"}, {"Nk", "d"});
  with_dtype(q, [&]<class T>(T) {
    run(Head<T>{to_matrix<T>(q.array, q.file), to_matrix<T>(k.array, k.file),
                to_matrix<T>(v.array, v.file)});
  });
}

}  // namespace flash_steps::cli

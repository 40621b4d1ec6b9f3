// One head for the executables of chapters that compute one: from files, or random.
#pragma once

#include <optional>
#include <string>

#include "common/cli/common_options.hpp"
#include "common/cli/input.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace flash_steps::cli {

template <class T>
struct Head {
  Matrix<T> Q, K, V;  // (Nq, d), (Nk, d), (Nk, d)
};

struct HeadFiles {
  std::optional<std::string> q, k, v;
};

// --q --k --v, all or none, or --n --nk --d --seed for random input.
inline void add_head(Options& options, HeadFiles& files, CommonOptions& common) {
  options.group("Input");
  options.add("--q", files.q, "queries, .npy [Nq, d], f4 or f8");
  options.add("--k", files.k, "keys, .npy [Nk, d]");
  options.add("--v", files.v, "values, .npy [Nk, d]");
  add_sizes(options, common);
  options.all_or_none({"--q", "--k", "--v"});
  options.exclusive({"--q"}, {"--n", "--nk", "--d"});
}

// Calls run(Head<float>), or run(Head<double>) for f8 files. Throws UsageError for files whose
// types or shapes do not fit, or a head dimension beyond 256.
template <class Run>
void with_head(const HeadFiles& files, const CommonOptions& common, const Run& run) {
  if (!files.q) {
    const Index nk = common.nk.value_or(common.n);
    return run(Head<float>{random_matrix<float>(common.n, common.d, common.seed, 0),
                           random_matrix<float>(nk, common.d, common.seed, 1),
                           random_matrix<float>(nk, common.d, common.seed, 2)});
  }
  const Input q = read_input(*files.q, "--q"), k = read_input(*files.k, "--k"),
              v = read_input(*files.v, "--v");
  require_same_dtype({&q, &k, &v});
  Dimensions sizes;
  sizes.require(q, {"Nq", "d"});
  sizes.require(k, {"Nk", "d"});
  sizes.require(v, {"Nk", "d"});
  sizes.require_range("d", 1, 256);
  const auto head = [&]<class T>(T) {
    return Head<T>{to_matrix<T>(q.array, q.file), to_matrix<T>(k.array, k.file),
                   to_matrix<T>(v.array, v.file)};
  };
  if (dtype_name(q.array) == std::string("f8")) {
    run(head(double{}));
  } else {
    run(head(float{}));
  }
}

}  // namespace flash_steps::cli

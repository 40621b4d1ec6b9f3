// The golden data of tests/golden: inputs, and PyTorch's results in float64.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/tensor/npy_matrix.hpp"

namespace flash_steps::test {

struct Golden {
  std::string name;
  std::filesystem::path folder;
  Matrix<float> Q, K, V;
  std::optional<double> scale;  // where it is not the default
  Matrix<double> O, O_causal;
  Vector<double> LSE, LSE_causal;
};

inline std::vector<Golden> goldens(const std::string& set) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(FLASH_STEPS_GOLDEN_DIR) / set)) {
    folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  REQUIRE(!folders.empty());

  std::vector<Golden> result;
  for (const auto& folder : folders) {
    const auto read = [&](const char* name) { return read_npy(folder / name); };
    Golden g;
    g.name = folder.filename().string();
    g.folder = folder;
    g.Q = to_matrix<float>(read("q.npy"), "q");
    g.K = to_matrix<float>(read("k.npy"), "k");
    g.V = to_matrix<float>(read("v.npy"), "v");
    if (std::filesystem::exists(folder / "scale.npy")) {
      g.scale = to_vector<double>(read("scale.npy"), "scale")[0];
    }
    g.O = to_matrix<double>(read("o.npy"), "o");
    g.O_causal = to_matrix<double>(read("o_causal.npy"), "o_causal");
    g.LSE = to_vector<double>(read("lse.npy"), "lse");
    g.LSE_causal = to_vector<double>(read("lse_causal.npy"), "lse_causal");
    result.push_back(std::move(g));
  }
  return result;
}

}  // namespace flash_steps::test

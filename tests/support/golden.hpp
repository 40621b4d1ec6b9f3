// The golden data of tests/golden: inputs, and PyTorch's results in float64. Every function
// gives all cases of a set, those of a case without and with the causal mask beside each other.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/tensor/heads_array.hpp"
#include "tests/support/load.hpp"

namespace flash_steps::test {

// goldens("forward"), goldens("real"): single heads.
struct Golden {
  std::string name;
  std::filesystem::path folder;
  Matrix<float> Q, K, V;
  std::optional<double> scale;  // where it is not the default
  Matrix<double> O, O_causal;
  Vector<double> LSE, LSE_causal;
};

// gradient_goldens(): the inputs of goldens("forward") with gradients; four entries a case,
// without and with the causal mask, without and with dLSE.
struct GradientGolden {
  std::string name;
  std::filesystem::path folder, forward;  // do, dlse and gradients; q, k, v, o and lse
  bool causal = false;
  std::optional<double> scale;
  Matrix<float> Q, K, V, dO;          // dO (Nq, d)
  std::optional<Vector<float>> dLSE;  // (Nq)
  Matrix<double> O, dQ, dK, dV;
  Vector<double> LSE;
};

// heads_goldens("gqa"), heads_goldens("decoder"), dropout_goldens(): batches, with Hkv
// key/value heads. Where dLSE is given, the gradients are those with it.
struct HeadsGolden {
  std::string name;
  std::filesystem::path folder;
  bool causal = false;
  std::optional<double> scale;
  HeadsArray<float> Q, K, V, dO;            // [B, H, Nq, d], K and V [B, Hkv, Nk, d]
  std::optional<Matrix<float>> dLSE;        // (B * H, Nq)
  double dropout = 0;                       // p
  std::vector<Matrix<std::uint8_t>> masks;  // B * H times (Nq, Nk), 1 = kept; none without p
  HeadsArray<double> O, dQ, dK, dV;
  Matrix<double> LSE;  // (B * H, Nq)
};

namespace detail {

using Folder = std::filesystem::path;

inline Folder golden_set(const std::string& set) {
  return Folder(FLASH_STEPS_GOLDEN_DIR) / set;
}

inline std::vector<Folder> golden_folders(const std::string& set) {
  std::vector<Folder> folders;
  for (const auto& entry : std::filesystem::directory_iterator(golden_set(set))) {
    folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  REQUIRE(!folders.empty());
  return folders;
}

inline bool has(const Folder& folder, const std::string& name) {
  return std::filesystem::exists(folder / (name + ".npy"));
}

inline std::optional<double> golden_scale(const Folder& folder) {
  if (!has(folder, "scale")) return std::nullopt;
  return load_vector<double>(folder, "scale")[0];
}

// [B, H, Nq, Nk], one matrix a head.
inline std::vector<Matrix<std::uint8_t>> golden_masks(const Folder& folder) {
  const HeadsArray<std::uint8_t> all = load_heads<std::uint8_t>(folder, "mask");
  std::vector<Matrix<std::uint8_t>> masks;
  for (std::int64_t b = 0; b < all.B(); ++b) {
    for (std::int64_t h = 0; h < all.H(); ++h) masks.emplace_back(all.head(b, h));
  }
  return masks;
}

}  // namespace detail

inline std::vector<Golden> goldens(const std::string& set) {
  using namespace detail;
  std::vector<Golden> result;
  for (const Folder& folder : golden_folders(set)) {
    Golden g;
    g.name = folder.filename().string();
    g.folder = folder;
    g.Q = load_matrix<float>(folder, "q");
    g.K = load_matrix<float>(folder, "k");
    g.V = load_matrix<float>(folder, "v");
    g.scale = golden_scale(folder);
    g.O = load_matrix<double>(folder, "o");
    g.O_causal = load_matrix<double>(folder, "o_causal");
    g.LSE = load_vector<double>(folder, "lse");
    g.LSE_causal = load_vector<double>(folder, "lse_causal");
    result.push_back(std::move(g));
  }
  return result;
}

inline std::vector<GradientGolden> gradient_goldens() {
  using namespace detail;
  std::vector<GradientGolden> result;
  for (const Folder& folder : golden_folders("backward")) {
    const Folder forward = golden_set("forward") / folder.filename();
    for (const bool causal : {false, true}) {
      for (const bool with_dLSE : {false, true}) {
        const std::string mask = causal ? "_causal" : "", dlse = with_dLSE ? "_dlse" : "";
        GradientGolden g;
        g.name = folder.filename().string() + dlse + mask;
        g.folder = folder;
        g.forward = forward;
        g.causal = causal;
        g.scale = golden_scale(forward);
        g.Q = load_matrix<float>(forward, "q");
        g.K = load_matrix<float>(forward, "k");
        g.V = load_matrix<float>(forward, "v");
        g.dO = load_matrix<float>(folder, "do");
        if (with_dLSE) g.dLSE = load_vector<float>(folder, "dlse");
        g.O = load_matrix<double>(forward, "o" + mask);
        g.LSE = load_vector<double>(forward, "lse" + mask);
        g.dQ = load_matrix<double>(folder, "dq" + dlse + mask);
        g.dK = load_matrix<double>(folder, "dk" + dlse + mask);
        g.dV = load_matrix<double>(folder, "dv" + mask);  // does not depend on dLSE
        result.push_back(std::move(g));
      }
    }
  }
  return result;
}

inline std::vector<HeadsGolden> heads_goldens(const std::string& set) {
  using namespace detail;
  std::vector<HeadsGolden> result;
  for (const Folder& folder : golden_folders(set)) {
    for (const bool causal : {false, true}) {
      const std::string mask = causal ? "_causal" : "";
      if (!has(folder, "o" + mask)) continue;  // a decoder has no other than causal results
      HeadsGolden g;
      g.name = folder.filename().string() + mask;
      g.folder = folder;
      g.causal = causal;
      g.scale = golden_scale(folder);
      g.Q = load_heads<float>(folder, "q");
      g.K = load_heads<float>(folder, "k");
      g.V = load_heads<float>(folder, "v");
      g.dO = load_heads<float>(folder, "do");
      if (has(folder, "dlse")) g.dLSE = load_rows<float>(folder, "dlse");
      if (has(folder, "p")) {
        g.dropout = load_vector<double>(folder, "p")[0];
        g.masks = golden_masks(folder);
      }
      g.O = load_heads<double>(folder, "o" + mask);
      g.LSE = load_rows<double>(folder, "lse" + mask);
      g.dQ = load_heads<double>(folder, "dq" + mask);
      g.dK = load_heads<double>(folder, "dk" + mask);
      g.dV = load_heads<double>(folder, "dv" + mask);
      result.push_back(std::move(g));
    }
  }
  return result;
}

inline std::vector<HeadsGolden> dropout_goldens() { return heads_goldens("dropout"); }

}  // namespace flash_steps::test

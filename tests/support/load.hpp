// Arrays of a folder: NAME.npy, in the type and rank that the caller expects (else NpyError).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/tensor/heads_array.hpp"
#include "common/tensor/npy_matrix.hpp"

namespace flash_steps::test {

inline NpyArray load_npy(const std::filesystem::path& folder, const std::string& name) {
  return read_npy(folder / (name + ".npy"));
}

template <class T>
Matrix<T> load_matrix(const std::filesystem::path& folder, const std::string& name) {
  return to_matrix<T>(load_npy(folder, name), name);
}

template <class T>
Vector<T> load_vector(const std::filesystem::path& folder, const std::string& name) {
  return to_vector<T>(load_npy(folder, name), name);
}

template <class T>
HeadsArray<T> load_heads(const std::filesystem::path& folder, const std::string& name) {
  const NpyArray array = load_npy(folder, name);
  const std::vector<T>& data = checked_data<T>(array, 4, "[B, H, N, d]", name);
  HeadsArray<T> heads(array.shape[0], array.shape[1], array.shape[2], array.shape[3]);
  heads.elements() = data;
  return heads;
}

// [B, H, Nq] as (B * H, Nq).
template <class T>
Matrix<T> load_rows(const std::filesystem::path& folder, const std::string& name) {
  const NpyArray array = load_npy(folder, name);
  const std::vector<T>& data = checked_data<T>(array, 3, "[B, H, Nq]", name);
  return Eigen::Map<const Matrix<T>>(data.data(), array.shape[0] * array.shape[1],
                                     array.shape[2]);
}

}  // namespace flash_steps::test

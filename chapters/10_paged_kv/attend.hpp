// Whole calls on the host's arrays, for the executable and the tests: memory for the results,
// copies to the device and back, and chapter 09 beside them.
#pragma once

#include <cmath>

#include "chapters/09_flash_decoding/flash_decoding.hpp"
#include "chapters/09_flash_decoding/flash_decoding_cuda.hpp"
#include "chapters/10_paged_kv/paged_attention.hpp"
#include "chapters/10_paged_kv/paged_attention_cuda.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/heads_array.hpp"

namespace flash_steps {

template <class T>
struct PagedInputs {
  HeadsArray<T> Q, pool;  // [B, H, Nq, d], [2 * blocks, Hkv, block_size, d]
  BlockTable table;

  Index blocks() const { return pool.B() / 2; }
  Index block_size() const { return pool.N(); }
};

template <class T>
struct Attended {
  HeadsArray<T> O;  // [B, H, Nq, d]
  Matrix<T> LSE;    // (B * H, Nq)
};

template <class T>
Attended<T> attend_on_cpu(const PagedInputs<T>& in, const DecodingOptions& options) {
  // NaN: whatever is not written shows
  Attended<T> out{HeadsArray<T>(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d(), T(NAN)),
                  Matrix<T>::Constant(in.Q.B() * in.Q.H(), in.Q.N(), T(NAN))};
  paged_attention_cpu<T>(in.Q.view(), in.pool.view(), in.table, out.O.view(), out.LSE, options);
  return out;
}

inline Attended<float> attend_on_device(const PagedInputs<float>& in,
                                        const DecodingOptions& options) {
  const DeviceBlockTable table(in.table, in.blocks(), in.block_size());
  const auto Q = to_device(in.Q), pool = to_device(in.pool);
  DeviceHeads<float> O(in.Q.B(), in.Q.H(), in.Q.N(), in.Q.d());
  DeviceMatrix<float> LSE(in.Q.B() * in.Q.H(), in.Q.N());
  paged_attention_cuda(Q, pool, table, O, LSE, options);
  return {to_host(O), to_host(LSE)};
}

// Chapter 09, on the same tokens laid out contiguously: Q [B, H, Nq, d], K and V [B, Hkv, Nk,
// d].
inline Attended<float> contiguous_on_cpu(const HeadsArray<float>& Q, const HeadsArray<float>& K,
                                         const HeadsArray<float>& V,
                                         const DecodingOptions& options) {
  Attended<float> out{HeadsArray<float>(Q.B(), Q.H(), Q.N(), Q.d(), NAN),
                      Matrix<float>::Constant(Q.B() * Q.H(), Q.N(), NAN)};
  flash_decoding_cpu<float>(Q.view(), K.view(), V.view(), out.O.view(), out.LSE, options);
  return out;
}
inline Attended<float> contiguous_on_device(const HeadsArray<float>& Q,
                                            const HeadsArray<float>& K,
                                            const HeadsArray<float>& V,
                                            const DecodingOptions& options) {
  DeviceHeads<float> O(Q.B(), Q.H(), Q.N(), Q.d());
  DeviceMatrix<float> LSE(Q.B() * Q.H(), Q.N());
  flash_decoding_cuda(to_device(Q), to_device(K), to_device(V), O, LSE, options);
  return {to_host(O), to_host(LSE)};
}

// The first `tokens` rows of batch b: of a sequence in a batch of longer ones, all it has.
inline HeadsArray<float> first_tokens(const HeadsArray<float>& heads, Index b, Index tokens) {
  HeadsArray<float> result(1, heads.H(), tokens, heads.d());
  for (Index h = 0; h < heads.H(); ++h) {
    result.head(0, h) = heads.head(b, h).topRows(tokens);
  }
  return result;
}

}  // namespace flash_steps

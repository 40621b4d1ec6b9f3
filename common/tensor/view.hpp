// A batch of heads in somebody else's memory, one Eigen matrix a head.
//
//   HeadsView<const float> Q = bhnd_view(data, B, H, N, d);
//   x_cpu<float>(Q.head(b, h), ...);   // (N, d), nothing is copied
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/tensor/layout.hpp"
#include "common/tensor/matrix.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {

// A strided view of [B, H, N, d]. T is float, double, ...; const float makes it read-only. Like
// a pointer, it owns nothing and is cheap to copy; the memory must outlive it and all its
// heads.
//
// Strides along B and H may be 0 (one batch or head shared by all) or negative, and so may the
// row stride be negative (rows backwards). A row stride of 0 over several rows is refused:
// Eigen::Ref takes a run-time stride of 0 for "contiguous" and would read other memory. Whoever
// writes through a view sees to it that no two heads overlap.
template <class T>
class HeadsView {
 public:
  using Scalar = std::remove_const_t<T>;
  using Head =
      Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<Scalar>, Matrix<Scalar>>,
                 Eigen::Unaligned, Eigen::OuterStride<>>;

  // data is the address of element (0, 0, 0, 0), not the lowest address if a stride is
  // negative; it may be null if the view is empty. Throws std::invalid_argument for a negative
  // size, offsets beyond 64 bits, a row stride of 0 over several rows, or null data.
  HeadsView(T* data, const HeadsLayout& layout) : data_(data), layout_(layout) {
    check_layout(layout);
    require(layout.stride_n != 0 || layout.N <= 1 || empty(),
            "a view needs a row stride other than 0: copy the row instead of repeating it");
    require(data != nullptr || empty(), "a view that is not empty needs memory, found null");
  }

  // A view for writing serves where one for reading is asked for.
  // (A template: otherwise a view for writing would have no copy constructor.)
  template <class U>
  requires std::is_same_v<const U, T> HeadsView(const HeadsView<U>& other)
      : data_(other.data()), layout_(other.layout()) {}

  std::int64_t B() const { return layout_.B; }
  std::int64_t H() const { return layout_.H; }
  std::int64_t N() const { return layout_.N; }
  std::int64_t d() const { return layout_.d; }
  const HeadsLayout& layout() const { return layout_; }
  T* data() const { return data_; }
  bool empty() const { return B() == 0 || H() == 0 || N() == 0 || d() == 0; }

  // Head h of batch b, (N, d), as a map into the view's memory: writing to it writes there. It
  // passes to MatrixIn and MatrixOut without a copy. Throws std::out_of_range.
  Head head(std::int64_t b, std::int64_t h) const {
    check_position("batch", b, B());
    check_position("head", h, H());
    // an empty head has no address: an offset from null, or past the end, would be undefined
    T* first = empty() ? data_ : data_ + layout_.offset(b, h, 0);
    return Head(first, N(), d(), Eigen::OuterStride<>(layout_.stride_n));
  }

 private:
  static void check_position(const char* what, std::int64_t position, std::int64_t size) {
    if (position < 0 || position >= size) {
      throw std::out_of_range(std::string(what) + " " + std::to_string(position) +
                              " is outside a view of " + std::to_string(size));
    }
  }

  T* data_;
  HeadsLayout layout_;
};

// Views of contiguous memory of B * H * N * d elements. Both take the sizes in the order B, H,
// N, d; the name says the order in memory. Errors: those of the layouts and of HeadsView.
template <class T>
HeadsView<T> bhnd_view(T* data, std::int64_t B, std::int64_t H, std::int64_t N,
                       std::int64_t d) {
  return {data, bhnd_layout(B, H, N, d)};
}

template <class T>
HeadsView<T> bnhd_view(T* data, std::int64_t B, std::int64_t H, std::int64_t N,
                       std::int64_t d) {
  return {data, bnhd_layout(B, H, N, d)};
}

}  // namespace flash_steps

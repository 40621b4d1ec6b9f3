// Attention in either order, on either device, from and to arrays that lie on the host.
#pragma once

#include <optional>

#include "chapters/03_tiled_forward/tile_memory.hpp"
#include "chapters/08_loop_order/kv_outer.hpp"
#include "chapters/08_loop_order/kv_outer_cuda.hpp"
#include "chapters/08_loop_order/predict_masked.hpp"
#include "chapters/08_loop_order/q_outer.hpp"
#include "chapters/08_loop_order/q_outer_cuda.hpp"
#include "chapters/08_loop_order/tell_apart.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/attention_input.hpp"
#include "common/tensor/ceil_div.hpp"

namespace flash_steps {

// `when` plays no part in q_outer.
struct Job {
  LoopOrder order = LoopOrder::q_outer;
  Normalise when = Normalise::every_tile;
  Tiling tile = {};
  bool causal = false;
  std::optional<double> scale = {};
};

template <class T>
struct Attention {
  Matrix<T> O;
  Vector<T> LSE;
  std::optional<Counts> counts;  // nothing on a GPU, which does not count
};

template <class T>
Attention<T> attend_on_cpu(const Head<T>& head, const Job& job) {
  const auto& [Q, K, V] = head;
  Attention<T> a{Matrix<T>(Q.rows(), Q.cols()), Vector<T>(Q.rows()), {}};
  if (job.order == LoopOrder::q_outer) {
    a.counts = q_outer_cpu<T>(Q, K, V, a.O, a.LSE, job.tile, job.causal, job.scale);
  } else {
    Vector<T> m(Q.rows()), l(Q.rows());
    a.counts = kv_outer_cpu<T>(Q, K, V, a.O, m, l, job.tile, job.causal, job.scale, job.when);
    a.LSE = m.array() + l.array().log();
  }
  return a;
}

// Runs the kernels of one order, and says what they moved. Setting O, m, l to their start
// values is not counted.
inline std::optional<Traffic> launch_order(const Head<float>& head, const Job& job,
                                           Attention<float>& a) {
  const auto Q = to_device(head.Q), K = to_device(head.K), V = to_device(head.V);
  DeviceMatrix<float> O(Q.rows(), Q.cols());
  if (job.order == LoopOrder::q_outer) {
    DeviceArray<float> LSE(Q.rows());
    reset_device_traffic();
    q_outer_cuda(Q, K, V, O, LSE, job.tile, job.causal, job.scale);
    a.LSE = to_host(LSE);
  } else {
    DeviceArray<float> m(Q.rows()), l(Q.rows());
    DeviceArray<unsigned> turns(1 + ceil_div(Q.rows(), job.tile.Br));
    kv_outer_start_cuda(O, m, l, turns);
    reset_device_traffic();
    kv_outer_walk_cuda(Q, K, V, O, m, l, turns, job.tile, job.causal, job.scale, job.when);
    a.LSE = to_host(m).array() + to_host(l).array().log();
  }
  a.O = to_host(O);
  return device_traffic();
}

inline Attention<float> attend_on_device(const Head<float>& head, const Job& job) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  Attention<float> a, ignored;
  const auto traffic = launch_order(head, job, a);
  const Index other_d = d == 1 ? 2 : 1;
  const bool other_fits =
      tile_shared_bytes(job.tile, other_d) + 16 <= device_limits().shared_bytes_per_block;
  if (!traffic || !other_fits) return a;
  const Head<float> other{Matrix<float>::Zero(Nq, other_d), Matrix<float>::Zero(Nk, other_d),
                          Matrix<float>::Zero(Nk, other_d)};
  a.counts = tell_apart(*traffic, d, *launch_order(other, job, ignored), other_d);
  return a;
}

}  // namespace flash_steps

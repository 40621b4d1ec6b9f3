// Times chapter 12 beside chapter 07, which drops nothing: what the mask costs, computed and
// stored. Work is counted as two products a head, 4 * N * N * d operations, and backward as
// five; exp and Philox are not counted. The limit is the arithmetic (BM_limit_product_cpu,
// BM_limit_multiply_add_cuda of docs/benchmarks), and for the mask alone, counted in bytes/s,
// on a GPU the memory.
#include "common/bench/bench.hpp"
#include "chapters/06_backward_recompute/backward_memory.hpp"
#include "chapters/07_cuda_kernel/batched_backward.hpp"
#include "chapters/07_cuda_kernel/batched_backward_cuda.hpp"
#include "chapters/07_cuda_kernel/batched_forward.hpp"
#include "chapters/07_cuda_kernel/batched_forward_cuda.hpp"
#include "chapters/12_dropout/dropout_backward.hpp"
#include "chapters/12_dropout/dropout_backward_cuda.hpp"
#include "chapters/12_dropout/dropout_forward.hpp"
#include "chapters/12_dropout/dropout_forward_cuda.hpp"

namespace {

using namespace flash_steps;
using Bytes = HeadsArray<std::uint8_t>;

// Where the mask comes from.
enum Source { none, computed, stored };

const Dropout kDropout{.p = 0.1, .seed = 7, .offset = 1};
constexpr Index kHeads = 4;

struct Problem : Heads {
  Problem(Index N, Index d)
      : Heads(kHeads, kHeads, N, N, d),
        dO(random_heads(kHeads, N, d, 3)),
        mask(1, kHeads, N, N) {
    dropout_mask_cpu(mask.view(), kDropout);
  }
  HeadsArray<float> dO;
  Bytes mask;
};

// What every pass counts, and what is asked of O.
void report(benchmark::State& state, const HeadsArray<float>& O, const Problem& x,
            Source source, Index products) {
  count_flops(state, products * product_flops(kHeads, O.N(), O.d()));
  const Matrix<std::uint8_t> mask = x.mask.head(0, kHeads - 1).bottomRows(rows_to_check(O.N()));
  ReferenceOptions options;
  if (source != none) options = {.dropout = kDropout.p, .mask = &mask};
  check_attention(state, O, x, 1e-4, options);
}

void forward_cpu(const Problem& x, Source source, HeadsArray<float>& O, Matrix<float>& LSE) {
  const HeadsView<const std::uint8_t> mask = x.mask.view();
  if (source == none) {
    batched_forward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O.view(), LSE);
  } else {
    dropout_forward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O.view(), LSE, kDropout, {},
                               false, {}, source == stored ? &mask : nullptr);
  }
}

void BM_dropout_forward_cpu(benchmark::State& state, Source source) {
  const Index N = state.range(0), d = state.range(1);
  const Problem x(N, d);
  HeadsArray<float> O(1, kHeads, N, d);
  Matrix<float> LSE(kHeads, N);
  time_cpu(state, [&] { forward_cpu(x, source, O, LSE); });
  report(state, O, x, source, 2);
}

void BM_dropout_backward_cpu(benchmark::State& state, Source source) {
  const Index N = state.range(0), d = state.range(1);
  const Problem x(N, d);
  HeadsArray<float> O(1, kHeads, N, d), dQ = O, dK = O, dV = O;
  Matrix<float> LSE(kHeads, N), delta(kHeads, N);
  forward_cpu(x, source, O, LSE);
  const HeadsView<const float> O_view = O.view();
  const HeadsView<const std::uint8_t> mask = x.mask.view();
  time_cpu(state, [&] {
    if (source == none) {
      batched_backward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O_view, LSE, x.dO.view(),
                                  delta, dQ.view(), dK.view(), dV.view());
    } else {
      dropout_backward_cpu<float>(x.Q.view(), x.K.view(), x.V.view(), O_view, LSE, x.dO.view(),
                                  delta, dQ.view(), dK.view(), dV.view(), kDropout, {}, false,
                                  {}, source == stored ? &mask : nullptr);
    }
  });
  report(state, O, x, source, 5);
}

// The problem, and room for results, on the device.
struct OnDevice {
  explicit OnDevice(const Problem& x)
      : Q(to_device(x.Q)),
        K(to_device(x.K)),
        V(to_device(x.V)),
        dO(to_device(x.dO)),
        O(Q.layout()),
        dQ(Q.layout()),
        dK(K.layout()),
        dV(V.layout()),
        LSE(kHeads, x.Q.N()),
        delta(kHeads, x.Q.N()),
        mask(to_device(x.mask)),
        tile(default_backward_tiling(x.Q.d(), device_limits().shared_bytes_per_block)) {}
  void forward(Source source) {
    if (source == none) {
      batched_forward_cuda(Q, K, V, O, LSE, tile);
    } else {
      dropout_forward_cuda(Q, K, V, O, LSE, kDropout, tile, false, {},
                           source == stored ? &mask : nullptr);
    }
  }
  void backward(Source source) {
    if (source == none) {
      batched_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, tile);
    } else {
      dropout_backward_cuda(Q, K, V, O, LSE, dO, delta, dQ, dK, dV, kDropout, tile, false, {},
                            source == stored ? &mask : nullptr);
    }
  }
  DeviceHeads<float> Q, K, V, dO, O, dQ, dK, dV;
  DeviceMatrix<float> LSE, delta;
  DeviceHeads<std::uint8_t> mask;
  Tiling tile;
};

void BM_dropout_forward_cuda(benchmark::State& state, Source source) {
  const Problem x(state.range(0), state.range(1));
  OnDevice device(x);
  time_cuda(state, [&] { device.forward(source); });
  report(state, to_host(device.O), x, source, 2);
}

void BM_dropout_backward_cuda(benchmark::State& state, Source source) {
  const Problem x(state.range(0), state.range(1));
  OnDevice device(x);
  device.forward(source);
  time_cuda(state, [&] { device.backward(source); });
  report(state, to_host(device.O), x, source, 5);
}

// The mask alone, written as bytes: a fourth of a Philox call a weight.
void report_mask(benchmark::State& state, const Bytes& mask) {
  const Eigen::Map<const Vector<std::uint8_t>> bits(mask.elements().data(),
                                                    static_cast<Index>(mask.elements().size()));
  count_bytes(state, bits.size());
  check_near(state, Vector<double>::Constant(1, bits.cast<double>().mean()),
             Vector<double>::Constant(1, 1 - kDropout.p), 0.01);
}

void BM_dropout_mask_cpu(benchmark::State& state) {
  Bytes mask(1, kHeads, state.range(0), state.range(0));
  time_cpu(state, [&] { dropout_mask_cpu(mask.view(), kDropout); });
  report_mask(state, mask);
}
void BM_dropout_mask_cuda(benchmark::State& state) {
  DeviceHeads<std::uint8_t> mask(1, kHeads, state.range(0), state.range(0));
  time_cuda(state, [&] { dropout_mask_cuda(mask, kDropout); });
  report_mask(state, to_host(mask));
}

void cpu_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 2048}, {64, 128}});
}
void cuda_sizes(Benchmark* b) {
  b->ArgNames({"N", "d"})->ArgsProduct({{1024, 4096}, {64, 128}});
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<std::string, Source> sources[] = {
      {"none", none}, {"computed", computed}, {"stored", stored}};
  for (const auto& [name, source] : sources) {
    add_cpu("BM_dropout_forward_cpu/" + name, BM_dropout_forward_cpu, source)->Apply(cpu_sizes);
    add_cpu("BM_dropout_backward_cpu/" + name, BM_dropout_backward_cpu, source)
        ->Apply(cpu_sizes);
    if (!gpu_is_there()) continue;
    add_cuda("BM_dropout_forward_cuda/" + name, BM_dropout_forward_cuda, source)
        ->Apply(cuda_sizes);
    add_cuda("BM_dropout_backward_cuda/" + name, BM_dropout_backward_cuda, source)
        ->Apply(cuda_sizes);
  }
  add_cpu("BM_dropout_mask_cpu", BM_dropout_mask_cpu)->ArgName("N")->Arg(2048);
  if (gpu_is_there()) {
    add_cuda("BM_dropout_mask_cuda", BM_dropout_mask_cuda)->ArgName("N")->Arg(16384);
  }
  return run_benchmarks(argc, argv);
}

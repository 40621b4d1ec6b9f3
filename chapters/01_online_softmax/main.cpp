// Chapter 01, the executable. With --x, or with
// --n for a random vector: a tool that prints m and l and writes softmax.npy.
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/01_online_softmax/online_softmax_cuda.hpp"
#include "chapters/01_online_softmax/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using cli::print;

template <class T>
struct Softmax {
  Vector<T> p;
  SoftmaxState<T> state;
};

Softmax<float> softmax_on_device(const Vector<float>& x, SoftmaxWidth width) {
  DeviceArray<float> p(x.size());
  DeviceMatrix<float> states(1 + online_softmax_blocks(x.size()), 2);
  online_softmax_cuda(to_device(x), p, states, width);
  const Matrix<float> ml = to_host(states);
  return {to_host(p), {ml(0, 0), ml(0, 1)}};
}

// ---- the demonstration

void narrate_one_pass() {
  print(
      "x = 1, 3, 2, 4. One pass keeps the running maximum m and l, the sum of exp(x - m) so "
      "far.\nA new maximum first rescales the old l by alpha = exp(m_old - m):\n\n"
      "   x      m    alpha        l\n");
  Vector<double> x(4), p(4);
  x << 1, 3, 2, 4;
  SoftmaxState<double> state;
  for (const double value : x) {
    const double m_old = state.m;
    push(state, value);
    print("{:>4.0f}   {:>4.0f}   {:>6.4f}   {:>6.4f}\n", value, state.m,
          std::exp(m_old - state.m), state.l);
  }
  normalise<double>(state, x, p);
  print("\np = exp(x - m) / l = {:.4f}, {:.4f}, {:.4f}, {:.4f};  LSE = m + ln l = {:.4f}\n\n",
        p[0], p[1], p[2], p[3], lse(state));
}

void narrate_merge() {
  SoftmaxState<double> left, right;
  for (const double value : {1.0, 3.0}) push(left, value);
  for (const double value : {2.0, 4.0}) push(right, value);
  const SoftmaxState<double> both = merge(left, right);
  print(
      "Two halves, each by itself: (m, l) = ({:.0f}, {:.4f}) and ({:.0f}, {:.4f}). Merged: "
      "({:.0f}, {:.4f}), the same.\n\n",
      left.m, left.l, right.m, right.l, both.m, both.l);
}

// To a number of decimals; NaN without a sign, which differs between machines.
std::string rounded(double value, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return std::isnan(value) ? "nan" : text;
}

void narrate_wrong_versions() {
  const auto show = [](const char* name, const std::vector<double>& p) {
    print("  {:<42}", name);
    double sum = 0;
    for (const double weight : p) {
      print("  {:>6}", rounded(weight, 4));
      sum += weight;
    }
    print("   sum {}\n", rounded(sum, 3));
  };
  const auto right = [](std::vector<double> values) {
    const Eigen::Map<Vector<double>> x(values.data(), static_cast<Index>(values.size()));
    online_softmax_cpu<double>(x, Eigen::Map<Vector<double>>(values.data(), x.size()));
    return values;
  };
  const std::vector<double> x{1, 2, 3}, hidden_first{-INFINITY, 0};
  print("Wrong versions, x = 1, 2, 3:\n");
  show("right", right(x));
  show("l += exp(m - x), p stored in the same pass", wrong::softmax_l_added(x));
  show("l *= exp(m - x), p stored in the same pass", wrong::softmax_stored_early(x));
  print("and x = -inf, 0:\n");
  show("right", right(hidden_first));
  show("(-inf) - (-inf) in the exponent", wrong::softmax_unguarded(hidden_first));
  print("\n");
}

// Softmax as every textbook has it, in float64: the maximum, the sum, the weights.
Vector<double> exact_softmax(const Vector<float>& x) {
  const double m = x.maxCoeff();
  double l = 0;
  for (const float value : x) l += std::exp(value - m);
  Vector<double> p(x.size());
  for (Index i = 0; i < x.size(); ++i) p[i] = std::exp(x[i] - m) / l;
  return p;
}

void check(const std::string& name, const Vector<float>& p, const Vector<double>& exact) {
  const double error = ((p.cast<double>() - exact).array() / exact.array())
                           .abs()
                           .maxCoeff<Eigen::PropagateNaN>();
  print("  {:<28} {:.1e}\n", name, error);
  if (!(error <= 1e-5)) throw cli::CheckFailed(name + " differs from softmax in float64");
}

void compare_devices() {
  const Index N = 10007;
  const Vector<float> x = random_matrix<float>(N, 1, 0, 0);
  const Vector<double> exact = exact_softmax(x);
  print(
      "A random vector of {} elements. Largest relative difference from softmax in float64:\n",
      N);
  Vector<float> p(N);
  online_softmax_cpu<float>(x, p);
  check("CPU", p, exact);
  if (!device_available()) {
    print(
        "  CUDA kernels                 not run: this build wants a GPU, and there is none\n");
    return;
  }
  const std::string kind = device_kind();
  check("one thread (" + kind + ")", softmax_on_device(x, SoftmaxWidth::thread).p, exact);
  check("one block (" + kind + ")", softmax_on_device(x, SoftmaxWidth::block).p, exact);
  check("the whole grid (" + kind + ")", softmax_on_device(x, SoftmaxWidth::grid).p, exact);
  DeviceMatrix<float> X(x.data(), 1, N), P(1, N);
  online_softmax_rows_cuda(X, P);
  check("as a row of a matrix (" + kind + ")", to_host(P).row(0).transpose(), exact);
}

// ---- the tool

template <class T>
Softmax<T> softmax_on_cpu(const Vector<T>& x) {
  Softmax<T> result{Vector<T>(x.size()), {}};
  result.state = online_softmax_cpu<T>(x, result.p);
  return result;
}

struct Request {
  cli::CommonOptions common;
  std::optional<std::string> x, width;
};

template <class T>
void report(const Request& request, const Softmax<T>& softmax, const cli::OutputFiles& files) {
  const SoftmaxState<T> state = softmax.state;
  if (request.common.json) {
    cli::Report json;
    cli::report_start(json, "01_online_softmax", request.common);
    json.set("width", request.width);
    json.set("n", softmax.p.size());
    json.set("m", state.m);
    json.set("l", state.l);
    json.set("lse", lse(state));
    json.set("files", files.names());
    json.print();
    return;
  }
  print("online softmax on {} ({}{}): N = {}\n", request.common.device,
        cli::computing_device(request.common), request.width ? ", one " + *request.width : "",
        softmax.p.size());
  if (std::isnan(state.l)) {
    print("l = LSE = nan: x has a NaN or +inf\n");
  } else {
    print("m = {}\nl = {}\nLSE = m + ln l = {}\n", state.m, state.l, lse(state));
  }
  files.print();
}

template <class T>
void run_tool(const Request& request, const Vector<T>& x) {
  cli::OutputFiles files(request.common.out);
  const auto finish = [&](const auto& softmax) {
    files.write("softmax.npy", to_npy(softmax.p));
    report(request, softmax, files);
  };
  if (request.common.device == "cpu") return finish(softmax_on_cpu(x));
  const SoftmaxWidth width = request.width == "thread"  ? SoftmaxWidth::thread
                             : request.width == "block" ? SoftmaxWidth::block
                                                        : SoftmaxWidth::grid;
  const Softmax<float> softmax = softmax_on_device(x.template cast<float>(), width);
  finish(Softmax<T>{softmax.p.template cast<T>(), {T(softmax.state.m), T(softmax.state.l)}});
}

void run_file(const Request& request) {
  const cli::Input x = cli::read_input(*request.x, "--x");
  cli::Dimensions sizes;
  sizes.require(x, {"N"});
  if (dtype_name(x.array) == std::string("f8")) {
    run_tool(request, to_vector<double>(x.array, x.file));
  } else {
    run_tool(request, to_vector<float>(x.array, x.file));
  }
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::CommonOptions& common = request.common;
  cli::Options options("01_online_softmax",
                       "Softmax of a vector, its maximum m and sum l found in one pass.");
  options.group("Input");
  options.add("--x", request.x, "the vector, .npy [N], f4 or f8");
  options.add("--n", common.n, "elements of a random vector", {0, cli::kMaxSize});
  options.add("--seed", common.seed, "seed of everything random");
  cli::add_device(options, common);
  options.add_choice("--width", request.width, {"thread", "block", "grid"},
                     "how much of the device works on the vector, the grid if not given");
  cli::add_output(options, common);
  options.exclusive({"--x"}, {"--n"});
  options.example("01_online_softmax --x x.npy --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    narrate_one_pass();
    narrate_merge();
    narrate_wrong_versions();
    compare_devices();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  if (request.width && common.device == "cpu") {
    throw cli::UsageError("--width is for --device sim or cuda: the CPU has one way");
  }
  if (!request.width && common.device != "cpu") request.width = "grid";
  if (request.x) return run_file(request);
  run_tool(request, Vector<float>(random_matrix<float>(common.n, 1, common.seed, 0)));
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

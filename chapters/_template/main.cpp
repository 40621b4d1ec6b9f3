// Chapter NN, the executable. Without arguments: a narrated demonstration. With --x, or with
// --n for a random vector: a tool that writes y.npy.
#include <optional>
#include <string>
#include <vector>

#include "template.hpp"
#include "template_cuda.hpp"

#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using cli::print;

// ---- the demonstration

void narrate_by_hand() {
  print("x = 1, 2, 3, a = 10:\n\n       x    a x\n");
  Vector<float> x(3), y(3);
  x << 1, 2, 3;
  scale_cpu<float>(x, y, 10.0f);
  for (Index i = 0; i < x.size(); ++i) print("  {:>6.0f} {:>6.0f}\n", x[i], y[i]);
  print("\n");
}

void compare_devices() {
  const Vector<float> x = random_matrix<float>(1000, 1, 0, 0);
  print("A random vector of {} elements. Largest difference from float64:\n", x.size());
  const auto report = [&](const std::string& name, const Vector<float>& y) {
    const double error =
        (y.cast<double>() - 3.0 * x.cast<double>()).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
    print("  {:<22} {:.1e}\n", name, error);
    if (!(error <= 1e-5)) throw cli::CheckFailed(name + " differs from float64");
  };
  Vector<float> y(x.size());
  scale_cpu<float>(x, y, 3.0f);
  report("CPU", y);
  if (!device_available()) {
    print("  CUDA kernel            not run: this build wants a GPU, and there is none\n");
    return;
  }
  DeviceArray<float> device_y(x.size());
  scale_cuda(to_device(x), device_y, 3.0f);
  report("CUDA kernel (" + std::string(device_kind()) + ")", to_host(device_y));
}

// ---- the tool

struct Request {
  cli::CommonOptions common;
  std::optional<std::string> x;
  double a = 2.0;
};

template <class T>
Vector<T> scaled(const Vector<T>& x, const Request& request) {
  Vector<T> y(x.size());
  if (request.common.device == "cpu") {
    scale_cpu<T>(x, y, static_cast<T>(request.a));
    return y;
  }
  DeviceArray<float> device_y(x.size());
  scale_cuda(to_device(Vector<float>(x.template cast<float>())), device_y,
             static_cast<float>(request.a));
  return to_host(device_y).template cast<T>();
}

template <class T>
void run_tool(const Vector<T>& x, const Request& request) {
  const cli::CommonOptions& common = request.common;
  cli::OutputFiles files(common.out);

  const Vector<T> y = scaled(x, request);
  files.write("y.npy", to_npy(y));
  if (common.json) {
    cli::Report report;
    cli::report_start(report, "_template", common);
    report.set("n", x.size());
    report.set("a", request.a);
    report.set("files", files.names());
    report.print();
    return;
  }
  print("scale on {} ({}): N = {}, a = {}\n", common.device, cli::computing_device(common),
        x.size(), request.a);
  files.print();
}

void run_file(const Request& request) {
  const cli::Input x = cli::read_input(*request.x, "--x");
  cli::Dimensions sizes;
  sizes.require(x, {"N"});
  cli::with_dtype(x, [&]<class T>(T) { run_tool(to_vector<T>(x.array, x.file), request); });
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::CommonOptions& common = request.common;
  cli::Options options("_template",
                       "A vector times a number. Without arguments: a narrated demonstration.");
  options.group("Input");
  options.add("--x", request.x, "the vector, .npy [N], f4 or f8");
  options.add("--a", request.a, "the number");
  options.add("--n", common.n, "elements of a random vector", {0, cli::kMaxSize});
  options.add("--seed", common.seed, "seed of everything random");
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.exclusive({"--x"}, {"--n"});
  options.example("_template --x x.npy --a 10 --out results");
  options.parse(arguments);

  if (!options.any_given()) {
    narrate_by_hand();
    compare_devices();
    return;
  }
  use_device(common.device, common.thread_order, common.seed);
  if (request.x) {
    run_file(request);
  } else {
    run_tool(Vector<float>(random_matrix<float>(common.n, 1, common.seed, 0)), request);
  }
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

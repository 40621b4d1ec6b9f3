// Chapter 11, the executable. With --o and --m --l or --lse: a tool that merges parts and
// writes o.npy and lse.npy. With --x, or --n for random scores: one that writes softmax.npy.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/11_wrong_vs_correct_merge/demonstration.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using cli::print;

struct Request {
  cli::CommonOptions common;
  std::optional<std::string> m, l, lse, o, x;
  std::string rule = "correct";
  double fixed_max = 0;

  MergeRule merge_rule() const {
    return rule == "stale_max"    ? MergeRule::stale_max
           : rule == "no_rescale" ? MergeRule::no_rescale
           : rule == "fixed_max"  ? MergeRule::fixed_max
                                  : MergeRule::correct;
  }
  bool on_cpu() const { return common.device == "cpu"; }
};

template <class T>
Merged<T> from_device(const Merged<float>& merged) {
  return {merged.values.template cast<T>(), {T(merged.state.m), T(merged.state.l)}};
}

// Sizes by name, for the report.
using Sizes = std::vector<std::pair<const char*, Index>>;

template <class T>
void report(const Request& request, const Sizes& sizes, const Merged<T>& merged,
            const Vector<double>& right, const cli::OutputFiles& files) {
  const std::string device = cli::computing_device(request.common);
  const auto [m, l] = merged.state;
  const bool fixed = request.merge_rule() == MergeRule::fixed_max;
  const double error = difference(merged.values, right);
  if (request.common.json) {
    cli::Report json;
    cli::report_start(json, "11_wrong_vs_correct_merge", request.common);
    json.set("rule", request.rule);
    json.set("fixed_max", fixed ? std::optional(request.fixed_max) : std::nullopt);
    for (const auto& [name, size] : sizes) json.set(name, size);
    json.set("m", m);
    json.set("l", l);
    json.set("lse", lse(merged.state));
    json.set("difference", error);
    json.set("files", files.names());
    json.print();
    return;
  }
  print("merge by the rule {}{} on {} ({}):", request.rule,
        fixed ? " " + text("%g", request.fixed_max) : "", request.common.device, device);
  for (const auto& [name, size] : sizes) print(" {} = {}", name, size);
  print("\n");
  if (std::isnan(l)) {
    print("l = LSE = nan\n");
  } else {
    print("m = {}\nl = {}\nLSE = m + ln l = {}\n", m, l, lse(merged.state));
  }
  print("largest difference from the correct rule in float64: {}\n", text("%.1e", error));
  files.print();
}

template <class T>
void run_parts(const Request& request, cli::OutputFiles& files, const Parts<T>& parts) {
  const MergeRule rule = request.merge_rule();
  const auto on_device = [&] {
    return merge_on_device({parts.m.template cast<float>(), parts.l.template cast<float>(),
                            parts.o.template cast<float>()},
                           rule, request.fixed_max);
  };
  const Merged<T> merged = request.on_cpu() ? merge_on_cpu(parts, rule, request.fixed_max)
                                            : from_device<T>(on_device());
  const Vector<double> right = merge_on_cpu(in_float64(parts), MergeRule::correct).values;
  files.write("o.npy", to_npy(merged.values));
  files.write("lse.npy", to_npy(Vector<T>::Constant(1, lse(merged.state))));
  const Index empty = (parts.l.array() == T(0)).count();
  report(request, {{"parts", parts.l.size()}, {"empty_parts", empty}, {"d", parts.o.cols()}},
         merged, right, files);
}

template <class T>
void run_scores(const Request& request, cli::OutputFiles& files, const Vector<T>& x) {
  const MergeRule rule = request.merge_rule();
  const Index Bc = request.common.bc.value_or(64);
  const Merged<T> merged =
      request.on_cpu() ? merge_on_cpu(x, Bc, rule, request.fixed_max)
                       : from_device<T>(merge_on_device(Vector<float>(x.template cast<float>()),
                                                        Bc, rule, request.fixed_max));
  const Vector<double> right =
      merge_on_cpu(Vector<double>(x.template cast<double>()), Bc, MergeRule::correct).values;
  files.write("softmax.npy", to_npy(merged.values));
  report(request, {{"n", x.size()}, {"bc", Bc}}, merged, right, files);
}

// A part is a sum of exp(s - m), none above 1: l is finite and not negative, and only an empty
// part has m = -inf.
template <class T>
void require_parts(const Parts<T>& parts, const std::string& m_file,
                   const std::string& l_file) {
  for (Index t = 0; t < parts.l.size(); ++t) {
    const std::string where = ": element " + std::to_string(t) + " is ";
    if (parts.l[t] < 0) {
      throw cli::UsageError(l_file + where + text("%g", parts.l[t]) +
                            ", but a sum of exponentials is never negative");
    }
    if (parts.l[t] == kInf<T>) {
      throw cli::UsageError(l_file + where + "inf, but a sum of exp(s - m) is finite");
    }
    if (parts.l[t] > 0 && parts.m[t] == -kInf<T>) {
      throw cli::UsageError(m_file + where + "-inf, but l is not 0 there");
    }
  }
}

void run_part_files(const Request& request, cli::OutputFiles& files) {
  const bool finished = request.lse.has_value();
  const cli::Input m = finished ? cli::read_input(*request.lse, "--lse")
                                : cli::read_input(*request.m, "--m"),
                   l = finished ? m : cli::read_input(*request.l, "--l"),
                   o = cli::read_input(*request.o, "--o");
  cli::require_same_dtype({&m, &l, &o});
  cli::Dimensions sizes;
  sizes.require(m, {"T"});
  sizes.require(l, {"T"});
  sizes.require(o, {"T", "d"});
  sizes.require_range("d", 1, 256);
  cli::with_dtype(o, [&]<class T>(T) {
    Parts<T> parts{to_vector<T>(m.array, m.file), to_vector<T>(l.array, l.file),
                   to_matrix<T>(o.array, o.file)};
    if (finished) parts.l = parts.m.unaryExpr(&l_of_finished<T>);
    require_parts(parts, m.file, l.file);
    run_parts(request, files, parts);
  });
}

void run_score_file(const Request& request, cli::OutputFiles& files) {
  const cli::Input x = cli::read_input(*request.x, "--x");
  cli::Dimensions sizes;
  sizes.require(x, {"N"});
  cli::with_dtype(
      x, [&]<class T>(T) { run_scores(request, files, to_vector<T>(x.array, x.file)); });
}

void add_input(cli::Options& options, Request& request) {
  options.group("Input: parts");
  options.add("--o", request.o, "sums of exp(s - m) v of each part, .npy [T, d], f4 or f8");
  options.add("--m", request.m, "the parts' maxima, .npy [T]");
  options.add("--l", request.l, "their sums of exp(s - m), .npy [T]; 0: an empty part");
  options.add("--lse", request.lse,
              "instead of --m --l: o is divided by l already, .npy [T]; -inf: an empty part");
  options.all_or_none({"--m", "--l"});
  options.exclusive({"--m"}, {"--lse"});
  options.group("Input: scores");
  options.add("--x", request.x, "scores, .npy [N], f4 or f8");
  options.add("--n", request.common.n, "random scores", {0, cli::kMaxSize});
  options.add("--seed", request.common.seed, "seed of everything random");
  options.add("--bc", request.common.bc, "scores in a block, 64 if not given",
              {1, cli::kMaxSize});
  options.exclusive({"--x"}, {"--n"});
  options.exclusive({"--x", "--n", "--bc"}, {"--o", "--m", "--lse"});
}

void run(const cli::Arguments& arguments) {
  Request request;
  cli::CommonOptions& common = request.common;
  cli::Options options("11_wrong_vs_correct_merge",
                       "Merges the parts of a softmax by a rule that is right, or by one of "
                       "three that are not.");
  add_input(options, request);
  options.group("Rule");
  options.add_choice("--rule", request.rule,
                     {"correct", "stale_max", "no_rescale", "fixed_max"},
                     "what the running sums are relative to");
  options.add("--fixed-max", request.fixed_max, "the maximum of --rule fixed_max");
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.example(
      "11_wrong_vs_correct_merge --m m.npy --l l.npy --o o.npy --rule stale_max --out results");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  use_device(common.device, common.thread_order, common.seed);
  if (options.given("--fixed-max") && request.merge_rule() != MergeRule::fixed_max) {
    throw cli::UsageError("--fixed-max is for --rule fixed_max");
  }
  if (request.o.has_value() != (request.m || request.lse)) {
    throw cli::UsageError("parts are --o with --m and --l, or --o with --lse");
  }
  cli::OutputFiles files(common.out);
  if (request.o) return run_part_files(request, files);
  if (request.x) return run_score_file(request, files);
  run_scores(request, files, Vector<float>(random_matrix<float>(common.n, 1, common.seed, 0)));
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

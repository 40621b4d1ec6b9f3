// Chapter 11, the executable. With --o and --m --l or --lse: a tool that merges parts and
// writes o.npy and lse.npy. With --x, or --n for random scores: one that writes softmax.npy.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/01_online_softmax/online_softmax.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts.hpp"
#include "chapters/11_wrong_vs_correct_merge/merge_parts_cuda.hpp"
#include "chapters/11_wrong_vs_correct_merge/wrong_versions.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using cli::print;

template <class T>
struct Parts {
  Vector<T> m, l;  // (T)
  Matrix<T> o;     // (T, d)
};

// What comes out: O (d) of parts, or p (N) of scores.
template <class T>
struct Merged {
  Vector<T> values;
  SoftmaxState<T> state;
};

template <class T>
Merged<T> merge_on_cpu(const Parts<T>& parts, MergeRule rule, double fixed_max = 0) {
  Merged<T> merged{Vector<T>(parts.o.cols()), {}};
  merged.state = merge_parts_cpu<T>(parts.m, parts.l, parts.o, merged.values, rule, fixed_max);
  return merged;
}

Merged<float> merge_on_device(const Parts<float>& parts, MergeRule rule, double fixed_max) {
  DeviceArray<float> O(parts.o.cols()), state(2);
  merge_parts_cuda(to_device(parts.m), to_device(parts.l), to_device(parts.o), O, state, rule,
                   fixed_max);
  const Vector<float> ml = to_host(state);
  return {to_host(O), {ml[0], ml[1]}};
}

template <class T>
Merged<T> merge_on_cpu(const Vector<T>& x, Index Bc, MergeRule rule, double fixed_max = 0) {
  Merged<T> merged{Vector<T>(x.size()), {}};
  merged.state = merge_scores_cpu<T>(x, merged.values, Bc, rule, fixed_max);
  return merged;
}

Merged<float> merge_on_device(const Vector<float>& x, Index Bc, MergeRule rule,
                              double fixed_max) {
  DeviceArray<float> p(x.size()), state(2);
  merge_scores_cuda(to_device(x), p, state, Bc, rule, fixed_max);
  const Vector<float> ml = to_host(state);
  return {to_host(p), {ml[0], ml[1]}};
}

// A number in a table; NaN without a sign, which differs between machines.
std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return std::isnan(value) ? "nan" : buffer;
}

// ---- the demonstration

struct NamedRule {
  const char* name;
  MergeRule rule;
  double fixed_max;
};
const NamedRule kRules[] = {{"correct", MergeRule::correct, 0},
                            {"stale_max", MergeRule::stale_max, 0},
                            {"no_rescale", MergeRule::no_rescale, 0},
                            {"fixed_max 30", MergeRule::fixed_max, 30},
                            {"fixed_max 130", MergeRule::fixed_max, 130}};

// Two parts of one key each: scores first and second, values 1 and 2.
template <class T>
Parts<T> two_parts(double first, double second) {
  Parts<T> parts{Vector<T>(2), Vector<T>::Ones(2), Matrix<T>(2, 1)};
  parts.m << static_cast<T>(first), static_cast<T>(second);
  parts.o << 1, 2;
  return parts;
}

void narrate_two_parts() {
  print(
      "A row of attention, computed in two parts that have not seen each other's keys:\n\n"
      "  part    maximum m    l = sum exp(s - m)    o = sum exp(s - m) v\n"
      "     1           10                     1                       1\n"
      "     2           20                     1                       2\n\n"
      "Right is (e^10 * 1 + e^20 * 2) / (e^10 + e^20) = 1.99995. What four rules make of it "
      "in float32:\n\n"
      "                   m           l           o      o / l        LSE\n");
  for (const auto& [name, rule, fixed_max] : kRules) {
    const Parts<float> parts = two_parts<float>(10, 20);
    Part<float> sum(1);
    for (Index t = 0; t < 2; ++t) {
      merge_part<float>(sum, parts.m[t], parts.l[t], parts.o.row(t).transpose(), rule,
                        static_cast<float>(fixed_max));
    }
    print("  {:<13} {:>4.0f} {:>11} {:>11} {:>10} {:>10}\n", name, sum.m, text("%.6g", sum.l),
          text("%.6g", sum.o[0]), text("%.6f", sum.o[0] / sum.l),
          text("%.4f", sum.m + std::log(sum.l)));
  }
  print("\n");
}

template <class T>
void tabulate(const char* type, const std::vector<double>& gaps) {
  print("{:<8} gap   ", type);
  for (const NamedRule& rule : kRules) print("{:>15}", rule.name);
  print("\n");
  for (const double gap : gaps) {
    print("{:>12.0f}   ", gap);
    const double exact = 2 - 1 / (1 + std::exp(gap));
    for (const auto& [name, rule, fixed_max] : kRules) {
      const Merged<T> merged = merge_on_cpu(two_parts<T>(10, 10 + gap), rule, fixed_max);
      const double error = std::abs(double{merged.values[0]} - exact);
      print("{:>15}", text("%.1e", error));
      if (rule == MergeRule::correct && !(error <= 1e-6)) {
        throw cli::CheckFailed("the correct rule is wrong at a gap of " + text("%.0f", gap));
      }
    }
    print("\n");
  }
  print("\n");
}

void show_table() {
  print(
      "How far o / l is from the truth when part 2 has the maximum 10 + gap. (At gap -10 the "
      "larger\nmaximum comes first.)\n\n");
  const std::vector<double> gaps{-10, 1, 10, 50, 88, 89, 200, 700, 710};
  tabulate<float>("float32", gaps);
  tabulate<double>("float64", gaps);
}

void narrate_scores() {
  Vector<float> x(4);
  x << 1, 3, 2, 4;
  print(
      "From scores, block by block: x = 1, 3, 2, 4 in blocks of 2. Weights exp(x - m) / l:\n\n"
      "                   m         l    weights                             sum\n");
  for (const auto& [name, rule, fixed_max] : kRules) {
    const auto [p, state] = merge_on_cpu(x, 2, rule, fixed_max);
    print("  {:<13} {:>4.0f} {:>9}   ", name, state.m, text("%.3g", state.l));
    for (const float weight : p) print(" {:>7}", text("%.4f", weight));
    print(" {:>8}\n", text("%.4f", p.sum()));
  }
  print("\n");
}

void narrate_listings() {
  std::vector<wrong::Block> blocks{{0, 1, {1}}, {0, 1, {3}}};
  const double first = wrong::stale_merge(blocks)[0], later = wrong::unguarded_merge(blocks)[0];
  const std::vector<wrong::Block> empty_first{{-kInf<double>, 0, {0}}, {0, 1, {3}}};
  print(
      "Two more ways to go wrong:\n"
      "  o is the first part's own array: parts (0, 1, 1), (0, 1, 3) give {}, and merged "
      "rightly\n  after that {}, for the first part has changed.\n"
      "  An empty first part (-inf, 0, 0) without a guard: {}. Here it is skipped.\n\n",
      text("%g", first), text("%g", later), text("%g", wrong::unguarded_merge(empty_first)[0]));
}

Parts<float> random_parts(Index T, Index d) {
  return {random_matrix<float>(T, 1, 0, 0, 5.0),
          random_matrix<float>(T, 1, 0, 1).array().abs() + 1, random_matrix<float>(T, d, 0, 2)};
}

template <class T>
Parts<double> in_float64(const Parts<T>& parts) {
  return {parts.m.template cast<double>(), parts.l.template cast<double>(),
          parts.o.template cast<double>()};
}

// The largest |a - b|; NaN beside NaN is no difference, NaN beside a number is NaN.
template <class A, class B>
double difference(const Vector<A>& a, const Vector<B>& b) {
  double largest = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double x = double{a[i]}, y = double{b[i]};
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!(std::abs(x - y) <= largest)) largest = std::abs(x - y);
    if (std::isnan(largest)) break;
  }
  return largest;
}

void compare_devices() {
  const Parts<float> parts = random_parts(37, 64);
  const Vector<double> right = merge_on_cpu(in_float64(parts), MergeRule::correct).values;
  print(
      "37 random parts of 64 channels. Largest difference from the correct rule in float64:\n\n"
      "                         ");
  for (const NamedRule& rule : kRules) print("{:>15}", rule.name);
  const auto report = [&](const std::string& name, const auto& merge) {
    print("\n  {:<23}", name);
    for (const auto& [rule_name, rule, fixed_max] : kRules) {
      const double error = difference(merge(rule, fixed_max).values, right);
      print("{:>15}", text("%.1e", error));
      if (rule == MergeRule::correct && !(error <= 1e-5)) {
        throw cli::CheckFailed(name + " differs from float64");
      }
    }
  };
  report("CPU", [&](MergeRule rule, double max) { return merge_on_cpu(parts, rule, max); });
  if (!device_available()) {
    print("\n  CUDA kernel            not run: this build wants a GPU, and there is none\n");
    return;
  }
  report("CUDA kernel (" + std::string(device_kind()) + ")",
         [&](MergeRule rule, double max) { return merge_on_device(parts, rule, max); });
  print("\n");
}

// ---- the tool

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

  if (!options.any_given()) {
    narrate_two_parts();
    show_table();
    narrate_scores();
    narrate_listings();
    return compare_devices();
  }
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

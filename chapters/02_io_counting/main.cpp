// Chapter 02, the executable. With --q --k --v, or
// with sizes for random input: a tool that counts what each algorithm moves.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chapters/02_io_counting/device_counts.hpp"
#include "chapters/02_io_counting/io_counting.hpp"
#include "chapters/02_io_counting/io_counting_cuda.hpp"
#include "chapters/02_io_counting/predict.hpp"
#include "chapters/02_io_counting/standard_attention.hpp"
#include "chapters/02_io_counting/standard_attention_cuda.hpp"
#include "common/cli/cli.hpp"
#include "common/cli/tool.hpp"
#include "common/device/eigen.hpp"
#include "common/tensor/npy_matrix.hpp"
#include "common/tensor/random_matrix.hpp"

namespace {

using namespace flash_steps;
using cli::print;

const std::vector<std::string> kAlgorithms{"standard", "q_outer", "kv_outer"};
constexpr std::int64_t kHopperSharedBytes = 232448;  // what a block can have; for --device cpu

Counts predict(const std::string& algorithm, Index Nq, Index Nk, Index d, Tiling tile) {
  if (algorithm == "standard") return predict_standard(Nq, Nk, d, tile);
  if (algorithm == "q_outer") return predict_q_outer(Nq, Nk, d, tile);
  return predict_kv_outer(Nq, Nk, d, tile);
}

// ---- counting: the algorithm runs, and its accesses are counted
// --------------------------------

template <class T>
struct Head {
  Matrix<T> Q, K, V;
};

Head<float> random_head(Index Nq, Index Nk, Index d, std::uint64_t seed) {
  return {random_matrix<float>(Nq, d, seed, 0), random_matrix<float>(Nk, d, seed, 1),
          random_matrix<float>(Nk, d, seed, 2)};
}

// O becomes the result of the standard attention; the walks have none.
template <class T>
Counts count_on_cpu(const std::string& algorithm, const Head<T>& head, Tiling tile,
                    std::optional<double> scale, Matrix<T>& O) {
  const Index Nq = head.Q.rows(), d = head.Q.cols();
  if (algorithm == "standard") {
    O.resize(Nq, d);
    return standard_attention_cpu<T>(head.Q, head.K, head.V, O, tile, scale);
  }
  const auto plain = [](const Matrix<T>& M) -> Matrix<float> {
    return M.template cast<float>();
  };
  const Matrix<float> Q = plain(head.Q), K = plain(head.K), V = plain(head.V);
  Matrix<float> sums = Matrix<float>::Zero(Nq, d);
  Vector<float> m = Vector<float>::Constant(Nq, -kInf<float>), l = Vector<float>::Zero(Nq);
  if (algorithm == "q_outer") return walk_q_outer_cpu(Q, K, V, sums, l, tile);
  return walk_kv_outer_cpu(Q, K, V, sums, m, l, tile);
}

template <class T>
std::optional<Counts> count_on_device(const std::string& algorithm, const Head<T>& head,
                                      Tiling tile, std::optional<double> scale, Matrix<T>& O) {
  const Index Nq = head.Q.rows(), d = head.Q.cols();
  const auto upload = [](const Matrix<T>& M) {
    return to_device(Matrix<float>(M.template cast<float>()));
  };
  const DeviceMatrix<float> Q = upload(head.Q), K = upload(head.K), V = upload(head.V);
  DeviceMatrix<float> device_O(Nq, d);
  if (algorithm == "standard") {
    reset_device_traffic();
    standard_attention_cuda(Q, K, V, device_O, tile, scale);
    synchronize_device();
    O = to_host(device_O).template cast<T>();
    const auto traffic = device_traffic();
    if (!traffic) return std::nullopt;
    return Counts{.reads = traffic->read_bytes / 4, .writes = traffic->written_bytes / 4};
  }
  return flash_steps::count_on_device([&](bool statistics) {
    const Index rows = statistics ? Nq : 0;
    DeviceArray<float> m = to_device(Vector<float>(Vector<float>::Constant(rows, -INFINITY))),
                       l = to_device(Vector<float>(Vector<float>::Zero(rows)));
    if (algorithm == "q_outer") {
      walk_q_outer_cuda(Q, K, V, device_O, l, tile);
    } else {
      device_O = to_device(Matrix<float>(Matrix<float>::Zero(Nq, d)));
      walk_kv_outer_cuda(Q, K, V, device_O, m, l, tile);
    }
    synchronize_device();
  });
}

void check(const std::string& what, const Counts& counted, const Counts& predicted) {
  if (counted == predicted) return;
  throw cli::CheckFailed(what + " moves " + std::to_string(counted.total()) +
                         " elements, but the formula says " +
                         std::to_string(predicted.total()));
}

// ---- the demonstration
// -------------------------------------------------------------------------

void print_counts(const std::string& algorithm, const std::string& where, const Counts& c) {
  print("  {:<10} {:<18} {:>9} {:>9} {:>11} {:>11} {:>10}\n", algorithm, where, c.reads,
        c.writes, c.statistics_reads, c.statistics_writes, c.total());
}

// Counts all three on the CPU and on the device, and checks both against the formulas.
void count_one_size(Index Nq, Index Nk, Index d, Tiling tile) {
  print(
      "  algorithm  from                   reads    writes  stat. read  stat. wrtn      "
      "total\n");
  const Head<float> head = random_head(Nq, Nk, d, 0);
  const std::string device = "CUDA kernels (" + std::string(device_kind()) + ")";
  for (const std::string& algorithm : kAlgorithms) {
    const Counts predicted = predict(algorithm, Nq, Nk, d, tile);
    print_counts(algorithm, "formula", predicted);
    Matrix<float> O;
    const Counts on_cpu = count_on_cpu(algorithm, head, tile, {}, O);
    print_counts("", "CPU", on_cpu);
    check(algorithm + " on the CPU", on_cpu, predicted);
    if (!device_available()) continue;
    const auto on_device = count_on_device(algorithm, head, tile, {}, O);
    if (!on_device) continue;
    print_counts("", device, *on_device);
    check(algorithm + " on " + device, *on_device, predicted);
  }
  if (!device_available()) print("  CUDA kernels: not run, there is no GPU\n");
  if (!device_traffic()) print("  A GPU does not count; a profiler does (see the README).\n");
  print("\n");
}

double megabytes(const Counts& counts) {
  const Traffic bytes = bytes_moved(counts, 4);
  return static_cast<double>(bytes.read_bytes + bytes.written_bytes) / 1e6;
}

void table_over_lengths() {
  const Index d = 64;
  const Tiling tile{.Br = 64, .Bc = 64};
  print(
      "Longer sequences: MB moved by one float32 head of d = {}, Br = Bc = {}, and how many "
      "times less than\n"
      "standard attention. (With all of Q on chip, Br = N, standard attention reads K and V "
      "once.)\n\n"
      "       N    standard  with Br = N     q_outer   less    kv_outer   less\n",
      d, tile.Br);
  for (Index N = 256; N <= 16384; N *= 2) {
    const double standard = megabytes(predict_standard(N, N, d, tile)),
                 textbook = megabytes(predict_standard(N, N, d, {.Br = N, .Bc = 64})),
                 q_outer = megabytes(predict_q_outer(N, N, d, tile)),
                 kv_outer = megabytes(predict_kv_outer(N, N, d, tile));
    print("  {:>6} {:>11.2f} {:>12.2f} {:>11.2f} {:>6.2f} {:>11.2f} {:>6.2f}\n", N, standard,
          textbook, q_outer, standard / q_outer, kv_outer, standard / kv_outer);
  }
  print(
      "\nAll of them grow with N^2. What tiling saves depends on the tiles, that is on the "
      "memory on chip.\n\n");
}

void table_over_memory() {
  const Index N = 16384, d = 64;
  const double squared = static_cast<double>(N) * static_cast<double>(N);
  print(
      "More memory on chip: N = {}, d = {}, elements moved in units of N^2. The scores of "
      "standard attention\n"
      "move 4. Left, tiles by the paper's rule; right, the notes' tiles of sqrt(M) and the "
      "notes' formula.\n\n"
      "     KB   M floats   Br  Bc   q_outer  kv_outer   d^2/M  |  sqrt(M)  needs / M  formula "
      " "
      "d/sqrt(M)\n",
      N, d);
  for (const std::int64_t kilobytes : {16, 32, 64, 100, 128, 192, 227}) {
    const std::int64_t M = kilobytes * 1024 / 4;
    const Tiling paper = choose_tiles_q_outer(M, d), notes = choose_tiles_notes(M);
    const auto in_N2 = [&](const Counts& c) {
      return static_cast<double>(c.total()) / squared;
    };
    const auto real_M = static_cast<double>(M), real_d = static_cast<double>(d);
    print(
        "  {:>5} {:>10} {:>4} {:>3} {:>9.3f} {:>9.3f} {:>7.3f}  |  {:>7} {:>10.2f} {:>8.3f} "
        "{:>10.3f}\n",
        kilobytes, M, paper.Br, paper.Bc, in_N2(predict_q_outer(N, N, d, paper)),
        in_N2(predict_kv_outer(N, N, d, choose_tiles_kv_outer(M, d))), real_d * real_d / real_M,
        notes.Br, static_cast<double>(tile_elements(notes, d)) / real_M,
        in_N2(predict_notes(N, N, d, notes)), real_d / std::sqrt(real_M));
  }
  print(
      "\nThe paper's order of growth is N^2 d^2/M: twice the memory, half the traffic. The "
      "notes' is N^2 d/sqrt(M);\ntheir square tiles need more than M, since S alone fills "
      "it.\n\n");
}

void compare_formulas() {
  const Index N = 1024, d = 64;
  print(
      "The notes' formula, N^2 d (1/Bc + 2/Br) + N d, against what q_outer moves (without "
      "LSE), "
      "N = {}, d = {}:\n\n"
      "   Br = Bc      formula        moved   formula / moved\n",
      N, d);
  for (const Index B : {16, 64, 256, 1024}) {
    const Counts notes = predict_notes(N, N, d, {.Br = B, .Bc = B}),
                 right = predict_q_outer(N, N, d, {.Br = B, .Bc = B});
    const std::int64_t moved = right.reads + right.writes;
    print("  {:>8} {:>12} {:>12} {:>17.3f}\n", B, notes.total(), moved,
          static_cast<double>(notes.total()) / static_cast<double>(moved));
  }
}

void demonstrate() {
  print(
      "Attention computes little for each number it fetches, so what counts is what it "
      "fetches.\n"
      "One head, N = 8 queries and keys, d = 2, in tiles of Br = 4 queries and Bc = 2 keys. "
      "Elements\n"
      "that cross between HBM and the chip, by the formulas and as counted while it runs:\n\n");
  count_one_size(8, 8, 2, {.Br = 4, .Bc = 2});
  print(
      "The same for Nq = 100, Nk = 150, d = 40, Br = 16, Bc = 32, none of which divides:\n\n");
  count_one_size(100, 150, 40, {.Br = 16, .Bc = 32});
  table_over_lengths();
  table_over_memory();
  compare_formulas();
}

// ---- the tool
// ----------------------------------------------------------------------------------

struct ToolOptions : cli::CommonOptions {
  std::optional<std::string> q, k, v;
  std::optional<std::string> order;
  std::optional<std::int64_t> sram;
  std::string dtype = "f32";
};

struct Job {
  std::string algorithm;
  Tiling tile;
  Counts predicted;
  std::optional<Counts> counted;
};

Tiling choose_tile(const std::string& algorithm, Index d, const ToolOptions& tool) {
  if (tool.sram) {
    const std::int64_t M = *tool.sram / bytes_per_element(tool.dtype);
    if (M < 1) {
      throw cli::UsageError("--sram: " + std::to_string(*tool.sram) +
                            " bytes hold no element of type " + tool.dtype);
    }
    return algorithm == "kv_outer" ? choose_tiles_kv_outer(M, d) : choose_tiles_q_outer(M, d);
  }
  const std::int64_t shared =
      tool.device == "cpu" ? kHopperSharedBytes : device_limits().shared_bytes_per_block;
  const Tiling chosen = default_square_tiles(shared / 4, d);
  return {.Br = tool.br.value_or(chosen.Br), .Bc = tool.bc.value_or(chosen.Bc)};
}

// Counting takes time for each access, and standard attention memory for each score: with these
// limits no run takes a minute or more than 4 GB.
std::int64_t most_accesses(const std::string& device) {
  if (device == "cpu") return 2'000'000'000;
  return device == "sim" ? 200'000'000 : 200'000'000'000;
}

std::vector<Job> plan(Index Nq, Index Nk, Index d, const ToolOptions& tool) {
  std::vector<Job> jobs;
  for (const std::string& algorithm : kAlgorithms) {
    if (tool.order && *tool.order != algorithm) continue;
    const Tiling tile = choose_tile(algorithm, d, tool);
    const Counts predicted = predict(algorithm, Nq, Nk, d, tile);
    const std::int64_t most = most_accesses(tool.device);
    if (predicted.total() > most) {
      throw cli::UsageError(
          algorithm + " with Nq = " + std::to_string(Nq) + ", Nk = " + std::to_string(Nk) +
          ", d = " + std::to_string(d) + ", Br = " + std::to_string(tile.Br) +
          ", Bc = " + std::to_string(tile.Bc) + " moves " + std::to_string(predicted.total()) +
          " elements; on --device " + tool.device + " the limit is " + std::to_string(most));
    }
    jobs.push_back({algorithm, tile, predicted, {}});
  }
  return jobs;
}

void print_json(const std::vector<Job>& jobs, Index Nq, Index Nk, Index d,
                const ToolOptions& tool, const cli::OutputFiles& files) {
  cli::Report report;
  cli::report_start(report, "02_io_counting", tool);
  report.set("nq", Nq);
  report.set("nk", Nk);
  report.set("d", d);
  report.set("dtype", tool.dtype);
  report.set("sram", tool.sram);
  for (const Job& job : jobs) {
    const char* name = job.algorithm.c_str();
    const auto counted = [&](std::int64_t Counts::*field) -> std::optional<std::int64_t> {
      if (!job.counted) return std::nullopt;
      return (*job.counted).*field;
    };
    report.set({"algorithms", name, "reads"}, counted(&Counts::reads));
    report.set({"algorithms", name, "writes"}, counted(&Counts::writes));
    report.set({"algorithms", name, "predicted_reads"}, job.predicted.reads);
    report.set({"algorithms", name, "predicted_writes"}, job.predicted.writes);
    report.set({"algorithms", name, "statistics_reads"}, counted(&Counts::statistics_reads));
    report.set({"algorithms", name, "statistics_writes"}, counted(&Counts::statistics_writes));
  }
  for (const Job& job : jobs) {
    report.set({"tiles", job.algorithm.c_str(), "br"}, job.tile.Br);
    report.set({"tiles", job.algorithm.c_str(), "bc"}, job.tile.Bc);
  }
  for (const Job& job : jobs) {
    const Traffic bytes = bytes_moved(job.predicted, bytes_per_element(tool.dtype));
    report.set({"bytes", job.algorithm.c_str(), "read"}, bytes.read_bytes);
    report.set({"bytes", job.algorithm.c_str(), "written"}, bytes.written_bytes);
  }
  report.set("files", files.names());
  report.print();
}

void print_prose(const std::vector<Job>& jobs, Index Nq, Index Nk, Index d,
                 const ToolOptions& tool, const std::string& device) {
  print("{} ({}): Q [{}, {}], K and V [{}, {}]; bytes for {}, statistics always float32\n",
        tool.device, device, Nq, d, Nk, d, tool.dtype);
  print(
      "  algorithm     Br    Bc           reads          writes  stat. read  stat. wrtn       "
      "     bytes\n");
  for (const Job& job : jobs) {
    const Counts& c = job.predicted;  // as counted, where the device counts
    const Traffic bytes = bytes_moved(c, bytes_per_element(tool.dtype));
    print("  {:<10} {:>5} {:>5} {:>15} {:>15} {:>11} {:>11} {:>16}\n", job.algorithm,
          job.tile.Br, job.tile.Bc, c.reads, c.writes, c.statistics_reads, c.statistics_writes,
          bytes.read_bytes + bytes.written_bytes);
  }
  print("{}\n", jobs.front().counted
                    ? "Counted while it ran; the formulas agree."
                    : "As predicted: the kernels ran, but a GPU does not count.");
}

template <class T>
void run_tool(std::vector<Job> jobs, const Head<T>& head, const ToolOptions& tool) {
  const Index Nq = head.Q.rows(), Nk = head.K.rows(), d = head.Q.cols();
  cli::OutputFiles files(tool.out);

  Matrix<T> O;
  for (Job& job : jobs) {
    job.counted = tool.device == "cpu"
                      ? count_on_cpu(job.algorithm, head, job.tile, tool.scale, O)
                      : count_on_device(job.algorithm, head, job.tile, tool.scale, O);
    if (job.counted) check(job.algorithm + " on " + tool.device, *job.counted, job.predicted);
  }
  files.write("o.npy", to_npy(O));
  if (tool.json) {
    print_json(jobs, Nq, Nk, d, tool, files);
    return;
  }
  print_prose(jobs, Nq, Nk, d, tool, cli::computing_device(tool));
  files.print();
}

void run_files(const ToolOptions& tool) {
  const cli::Input q = cli::read_input(*tool.q, "--q"), k = cli::read_input(*tool.k, "--k"),
                   v = cli::read_input(*tool.v, "--v");
  cli::require_same_dtype({&q, &k, &v});
  cli::Dimensions sizes;
  sizes.require(q, {"Nq", "d"});
  sizes.require(k, {"Nk", "d"});
  sizes.require(v, {"Nk", "d"});
  sizes.require_range("d", 1, 256);
  const std::vector<Job> jobs = plan(sizes["Nq"], sizes["Nk"], sizes["d"], tool);
  const auto head = [&]<class T>(T) {
    return Head<T>{to_matrix<T>(q.array, q.file), to_matrix<T>(k.array, k.file),
                   to_matrix<T>(v.array, v.file)};
  };
  if (dtype_name(q.array) == std::string("f8")) {
    run_tool(jobs, head(double{}), tool);
  } else {
    run_tool(jobs, head(float{}), tool);
  }
}

void run(const cli::Arguments& arguments) {
  ToolOptions tool;
  cli::Options options(
      "02_io_counting",
      "Counts what attention moves between HBM and the chip: standard attention, and walks of "
      "the tiled orders.");
  options.group("Input");
  options.add("--q", tool.q, "queries, .npy [Nq, d], f4 or f8");
  options.add("--k", tool.k, "keys, .npy [Nk, d]");
  options.add("--v", tool.v, "values, .npy [Nk, d]");
  cli::add_sizes(options, tool);
  cli::add_scale(options, tool);
  cli::add_tiles(options, tool);
  options.group("Counting");
  options.add_choice("--order", tool.order, kAlgorithms, "one algorithm, all if not given");
  options.add("--sram", tool.sram, "bytes on chip: tiles by the paper's rule, in place of --br",
              {1, cli::kMaxSize});
  options.add_choice("--dtype", tool.dtype, {"f32", "bf16", "f16"},
                     "type that the bytes are given for");
  cli::add_device(options, tool);
  cli::add_output(options, tool);
  options.all_or_none({"--q", "--k", "--v"});
  options.exclusive({"--q"}, {"--n", "--nk", "--d"});
  options.exclusive({"--sram"}, {"--br", "--bc"});
  options.example("02_io_counting --n 4096 --d 64 --sram 102400 --order q_outer --json");
  options.parse(arguments);

  if (!options.any_given()) return demonstrate();
  use_device(tool.device, tool.thread_order, tool.seed);
  if (tool.out && tool.order && *tool.order != "standard") {
    throw cli::UsageError("--out: only standard attention has a result, and --order is " +
                          *tool.order);
  }
  if (tool.q) return run_files(tool);
  const Index Nk = tool.nk.value_or(tool.n);
  const std::vector<Job> jobs = plan(tool.n, Nk, tool.d, tool);  // refuses before it allocates
  run_tool(jobs, random_head(tool.n, Nk, tool.d, tool.seed), tool);
}

}  // namespace

int main(int argc, char** argv) { return flash_steps::cli::run_main(argc, argv, run); }

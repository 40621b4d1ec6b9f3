// common/cli: command lines, exit codes, JSON, and the checks on input files.
#include "common/cli/cli.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.hpp"

using namespace flash_steps;
using cli::Arguments;

namespace {

// The message of the UsageError that `action` throws, "" if it throws none.
std::string usage_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const cli::UsageError& error) {
    return error.what();
  }
  return "";
}

// One option of every type, and the relations.
struct Sample {
  std::string q;
  std::optional<std::string> k;
  std::int64_t any = 7;
  std::int64_t n = 128;
  std::optional<std::int64_t> br;
  std::uint64_t seed = 0;
  double p = 0.5;
  std::optional<double> scale;
  bool json = false;
  std::string device = "cpu";
  std::optional<std::string> order;
  cli::Options options{"sample", "A sample."};

  Sample() {
    options.group("Input");
    options.add("--q", q, "queries");
    options.add("--k", k, "keys");
    options.all_or_none({"--q", "--k"});
    options.exclusive({"--q", "--k"}, {"--n"});
    options.group("Sizes");
    options.add("--any", any, "any integer");
    options.add("--n", n, "rows", {0, cli::kMaxSize});
    options.add("--br", br, "rows of a tile", {1, 1024});
    options.add("--seed", seed, "seed");
    options.add("--p", p, "a probability");
    options.add("--scale", scale, "factor");
    options.group("Output");
    options.add_flag("--json", json, "JSON");
    options.add_choice("--device", device, {"cpu", "sim", "cuda"}, "where");
    options.add_choice("--order", order, {"q_outer", "kv_outer"}, "loops");
    options.example("sample --q q.npy --k k.npy");
  }
};

// "--n 5" -> {"--n", "5"}.
Arguments words(const std::string& command_line) {
  std::istringstream stream(command_line);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string parse_error(const Arguments& arguments) {
  return usage_error([&] { Sample().options.parse(arguments); });
}
std::string parse_error(const std::string& command_line) {
  return parse_error(words(command_line));
}

struct Outcome {
  int exit_code;
  std::string out, err;
};

std::string read_text(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return "";
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// run_main in a child process that writes stdout to the file `out`, or has it closed if that is
// "". The child ends with _exit, so that output which run_main does not flush is missed.
Outcome run_main_with(const std::string& out, const std::function<void(const Arguments&)>& body,
                      const Arguments& arguments = {}) {
  const test::TemporaryFolder folder;
  const std::string err = folder.file("err");
  std::vector<const char*> argv = {"program"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());

  std::cout.flush();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    if (out.empty()) ::close(STDOUT_FILENO);
    ::_exit(cli::run_main(static_cast<int>(argv.size()), argv.data(), body));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), read_text(out), read_text(err)};
}

Outcome run(const std::function<void(const Arguments&)>& body,
            const Arguments& arguments = {}) {
  const test::TemporaryFolder folder;
  return run_main_with(folder.file("out"), body, arguments);
}

template <class Error>
Outcome run_throwing(const Error& error) {
  return run([&](const Arguments&) { throw error; });
}

}  // namespace

// ---- options -------------------------------------------------------------------------------

TEST_CASE("cpu: options keep their defaults when nothing is given") {
  Sample sample;
  sample.options.parse({});
  CHECK(sample.q.empty());
  CHECK_FALSE(sample.k.has_value());
  CHECK(sample.n == 128);
  CHECK_FALSE(sample.br.has_value());
  CHECK_FALSE(sample.scale.has_value());
  CHECK_FALSE(sample.json);
  CHECK(sample.device == "cpu");
  CHECK_FALSE(sample.order.has_value());
  CHECK_FALSE(sample.options.any_given());
  CHECK_FALSE(sample.options.given("--any"));
}

TEST_CASE("cpu: options store every type of value") {
  Sample sample;
  sample.options.parse(
      words("--q q.npy --k=a=b.npy --any -9223372036854775808 --br 1024 --seed "
            "18446744073709551615 --p=-2.5e-3 --scale .5 --json --device cuda "
            "--order=kv_outer"));
  CHECK(sample.q == "q.npy");
  CHECK(sample.k == "a=b.npy");
  CHECK(sample.any == std::numeric_limits<std::int64_t>::min());
  CHECK(sample.n == 128);
  CHECK(sample.br == 1024);
  CHECK(sample.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(sample.p == -2.5e-3);
  CHECK(sample.scale == 0.5);
  CHECK(sample.json);
  CHECK(sample.device == "cuda");
  CHECK(sample.order == "kv_outer");
  CHECK(sample.options.any_given());
  CHECK(sample.options.given("--any"));
  CHECK_FALSE(sample.options.given("--n"));
}

TEST_CASE("cpu: options refuse what is not an option") {
  CHECK(parse_error("--nn 3") == "unknown option --nn (--help lists the options)");
  CHECK(parse_error("--nn=3") == "unknown option --nn (--help lists the options)");
  CHECK(parse_error("--jso") == "unknown option --jso (--help lists the options)");
  CHECK(parse_error("-n3") == "unknown option -n3 (--help lists the options)");
  for (const std::string stray : {"q.npy", "-3", "-", "--", ""}) {
    CHECK(parse_error(Arguments{"--json", stray}) ==
          "unexpected argument '" + stray + "' (every input has an option, see --help)");
  }
}

TEST_CASE("cpu: options refuse missing and repeated values") {
  CHECK(parse_error("--n") == "--n needs a value");
  CHECK(parse_error("--n --json") == "--n needs a value, found '--json'");
  CHECK(parse_error(Arguments{"--q", ""}) == "--q needs a value, found ''");
  CHECK(parse_error("--n= 5") == "--n needs a value, found ''");
  CHECK(parse_error("--json=true") == "--json takes no value, found 'true'");
  CHECK(parse_error("--json=") == "--json takes no value, found ''");
  CHECK(parse_error("--nn=") == "unknown option --nn (--help lists the options)");
  CHECK(parse_error("--json false").starts_with("unexpected argument 'false'"));
  CHECK(parse_error("--n 5 --n=5") == "--n is given more than once");
  CHECK(parse_error("--json --json") == "--json is given more than once");
  CHECK(parse_error("--device cpu --device sim") == "--device is given more than once");
}

TEST_CASE("cpu: integers are read strictly") {
  for (const std::string text : {"12abc", "1.5", "0x10", "1e3", "+5", " 5", "5 ", "-", "nan"}) {
    CHECK(parse_error(Arguments{"--any", text}) ==
          "--any expects an integer, found '" + text + "'");
    CHECK(parse_error(Arguments{"--br", text}) ==
          "--br expects an integer from 1 to 1024, found '" + text + "'");
    CHECK(parse_error(Arguments{"--seed", text}) ==
          "--seed expects an integer from 0 to 18446744073709551615, found '" + text + "'");
  }
  CHECK(parse_error("--any 9223372036854775808") ==
        "--any expects an integer from -9223372036854775808 to 9223372036854775807, "
        "found '9223372036854775808'");
  CHECK_FALSE(parse_error("--any -9223372036854775809").empty());
  CHECK_FALSE(parse_error("--seed -1").empty());
  CHECK_FALSE(parse_error("--seed 18446744073709551616").empty());
}

TEST_CASE("cpu: integers stay in their range") {
  CHECK(parse_error("--n 0").empty());
  CHECK(parse_error("--n 2147483647").empty());
  CHECK(parse_error("--n -1") == "--n expects an integer >= 0, found '-1'");
  CHECK(parse_error("--n 2147483648") ==
        "--n expects an integer from 0 to 2147483647, found '2147483648'");
  CHECK(parse_error("--n 99999999999999999999") ==
        "--n expects an integer from 0 to 2147483647, found '99999999999999999999'");
  for (const std::string text : {"0", "1025", "-1"}) {
    CHECK(parse_error(Arguments{"--br", text}) ==
          "--br expects an integer from 1 to 1024, found '" + text + "'");
  }
  std::int64_t splits = 0;
  cli::parse_value("--splits", "4", splits, {1, 8});
  CHECK(splits == 4);
  CHECK(usage_error([&] {
          cli::parse_value("--splits", "x", splits, {1, 8});
        }) == "--splits expects an integer from 1 to 8, found 'x'");
}

TEST_CASE("cpu: real numbers are finite and decimal") {
  for (const std::string text : {"nan", "inf", "-inf", "NAN(1)", "infinity", "0x1p3", "1.5x",
                                 "1,5", "+1", " 1", "1 ", ".", "e5", "1e", "1.2.3", "1-2"}) {
    CHECK(parse_error(Arguments{"--scale", text}) ==
          "--scale expects a finite number, found '" + text + "'");
    CHECK_FALSE(parse_error(Arguments{"--p", text}).empty());
  }
  for (const std::string text : {"1e400", "-1e400", "1e-400"}) {
    CHECK(parse_error(Arguments{"--scale", text}) ==
          "--scale expects a number within the range of float64, found '" + text + "'");
  }
  for (const std::string text : {"0", "-0.0", "1e308", "1e-310", "-3", "5.", "1E+2"}) {
    CHECK(parse_error(Arguments{"--scale", text}).empty());
  }
}

TEST_CASE("cpu: choices are one of the words") {
  CHECK(parse_error("--device gpu") == "--device expects cpu, sim or cuda, found 'gpu'");
  CHECK(parse_error("--device CPU") == "--device expects cpu, sim or cuda, found 'CPU'");
  CHECK(parse_error("--order q") == "--order expects q_outer or kv_outer, found 'q'");
}

TEST_CASE("cpu: options that belong together or exclude each other") {
  CHECK(parse_error("--q a") == "--q and --k go together, and --k is missing");
  CHECK(parse_error("--k a") == "--q and --k go together, and --q is missing");
  CHECK(parse_error("--q a --k b").empty());
  CHECK(parse_error("--q a --k b --n 3") == "--q and --n cannot be combined");
}

TEST_CASE("cpu: help wins over other mistakes and shows all there is to know") {
  for (const std::string line :
       {"--help", "-h", "--n x --help", "--nn --help", "--n 1 --n 2 -h", "--help --help"}) {
    CHECK_THROWS_AS(Sample().options.parse(words(line)), cli::HelpRequested);
  }
  CHECK(Sample().options.help() ==
        "A sample.\n"
        "Usage: sample [OPTIONS]\n"
        "\n"
        "Input:\n"
        "  --q PATH                    queries\n"
        "  --k PATH                    keys\n"
        "\n"
        "Sizes:\n"
        "  --any N                     any integer (default 7)\n"
        "  --n N                       rows (>= 0; default 128)\n"
        "  --br N                      rows of a tile (from 1 to 1024)\n"
        "  --seed N                    seed (default 0)\n"
        "  --p X                       a probability (default 0.5)\n"
        "  --scale X                   factor\n"
        "\n"
        "Output:\n"
        "  --json                      JSON\n"
        "  --device cpu|sim|cuda       where (default cpu)\n"
        "  --order q_outer|kv_outer    loops\n"
        "  -h,--help                   print this text\n"
        "\n"
        "Without arguments: a short narrated demonstration.\n"
        "Exit codes: 0 done; 1 a cross-check, the device, memory or writing failed; 2 bad "
        "usage or input,\n"
        "or a directory --out that cannot be used.\n"
        "Example: sample --q q.npy --k k.npy\n");
}

TEST_CASE("cpu: common options are registered by group") {
  cli::CommonOptions common;
  cli::Options options("sample", "A sample.");
  cli::add_sizes(options, common);
  CHECK_THROWS_AS(options.parse(words("--br 8")), cli::UsageError);
  cli::add_batch(options, common);
  cli::add_scale(options, common);
  cli::add_causal(options, common);
  cli::add_tiles(options, common);
  cli::add_device(options, common);
  cli::add_output(options, common);
  options.parse(
      words("--n 0 --nk 5 --d 256 --seed 9 --batch 2 --heads 8 --kv-heads 4 --scale "
            "0 --causal --br 16 --bc 32 --device sim --thread-order random --out dir "
            "--json"));
  CHECK(common.n == 0);
  CHECK(common.nk == 5);
  CHECK(common.d == 256);
  CHECK(common.seed == 9);
  CHECK(common.batch == 2);
  CHECK(common.heads == 8);
  CHECK(common.kv_heads == 4);
  CHECK(common.scale == 0.0);
  CHECK(common.causal);
  CHECK(common.br == 16);
  CHECK(common.bc == 32);
  CHECK(common.device == "sim");
  CHECK(common.thread_order == "random");
  CHECK(common.out == "dir");
  CHECK(common.json);
  for (const std::string wrong : {"--n -1", "--nk -1", "--d 0", "--d 257", "--seed -1",
                                  "--batch 0", "--heads 0", "--kv-heads 0", "--scale inf",
                                  "--br 0", "--bc 0", "--device gpu", "--thread-order up"}) {
    const std::string error = usage_error([&] { options.parse(words(wrong)); });
    CHECK(error.starts_with(words(wrong)[0] + " expects "));
  }
  std::size_t widest = 0, begin = 0;
  const std::string help = options.help();
  for (std::size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
    widest = std::max(widest, end - begin);
  }
  CHECK(widest <= 96);
}

// ---- exit codes ----------------------------------------------------------------------------

TEST_CASE("cpu: run_main returns 0 and passes the arguments on") {
  const Outcome outcome = run(
      [](const Arguments& arguments) {
        for (const std::string& argument : arguments) cli::print("[{}]", argument);
      },
      {"--a", "b c"});
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == "[--a][b c]");
  CHECK(outcome.err.empty());
  CHECK(cli::run_main(0, nullptr, [](const Arguments& a) { REQUIRE(a.empty()); }) == 0);
}

TEST_CASE("cpu: run_main prints help to stdout and returns 0") {
  const Outcome outcome =
      run([](const Arguments& a) { Sample().options.parse(a); }, {"--help"});
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == Sample().options.help());
  CHECK(outcome.err.empty());
}

TEST_CASE("cpu: run_main returns 2 for bad usage and input") {
  const Outcome usage = run([](const Arguments& a) { Sample().options.parse(a); }, {"--n=x"});
  CHECK(usage.exit_code == 2);
  CHECK(usage.out.empty());
  CHECK(usage.err == "error: --n expects an integer >= 0, found 'x'\n");
  CHECK(run_throwing(std::invalid_argument("d must be positive")).exit_code == 2);
  CHECK(run_throwing(NpyError("q.npy: truncated")).exit_code == 2);
}

TEST_CASE("cpu: run_main returns 1 for everything else") {
  const Outcome check = run_throwing(cli::CheckFailed("cpu and sim differ by 0.5"));
  CHECK(check.exit_code == 1);
  CHECK(check.err == "error: cpu and sim differ by 0.5\n");
  CHECK(run_throwing(std::runtime_error("no device")).exit_code == 1);
  CHECK(run_throwing(std::logic_error("bug")).exit_code == 1);
  CHECK(run_throwing(std::bad_alloc()).err == "error: not enough memory\n");
  CHECK(run_throwing(std::length_error("vector")).err == "error: not enough memory\n");
  const Outcome unknown = run_throwing(42);
  CHECK(unknown.exit_code == 1);
  CHECK(unknown.err == "error: unknown exception\n");
}

TEST_CASE("cpu: an error is exactly one line") {
  const Outcome outcome = run_throwing(cli::UsageError("\none\r\n\ttwo \x1b[31m three\x7f\n"));
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.err == "error: one two [31m three\n");
  CHECK(cli::one_line("caf\xc3\xa9  au lait") == "caf\xc3\xa9  au lait");
  CHECK(cli::one_line("\n").empty());
}

TEST_CASE("cpu: output that cannot be written is not taken for success") {
  const auto print_one = [](const Arguments&) {
    cli::Report report;
    report.set("a", 1);
    report.print();
  };
  const auto print_much = [](const Arguments&) {
    for (int i = 0; i < 100000; ++i) cli::print("{}\n", i);
  };
  const auto print_unbuffered = [](const Arguments&) {  // nothing is left for the last flush
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    std::fputs("prose\n", stdout);
  };
  const auto fail_too = [](const Arguments&) {
    cli::print("prose\n");
    throw cli::UsageError("wrong");
  };
  const auto ask_for_help = [](const Arguments&) { throw cli::HelpRequested("help\n"); };
  std::vector<std::string> bad_outputs = {""};  // closed
  if (std::filesystem::exists("/dev/full")) bad_outputs.push_back("/dev/full");
  for (const std::string& out : bad_outputs) {
    CAPTURE(out);
    const Outcome one = run_main_with(out, print_one);
    CHECK(one.exit_code == 1);
    CHECK(one.err.starts_with("error: cannot write to stdout: "));
    CHECK(run_main_with(out, print_much).exit_code == 1);
    CHECK(run_main_with(out, print_unbuffered).exit_code == 1);
    CHECK(run_main_with(out, ask_for_help).exit_code == 1);
    const Outcome both = run_main_with(out, fail_too);
    CHECK(both.exit_code == 2);
    CHECK(both.err == "error: wrong\n");
  }
}

// ---- reports -------------------------------------------------------------------------------

TEST_CASE("cpu: a report is one line of JSON in the order of its keys") {
  cli::Report report;
  CHECK(report.text() == "{}");
  report.set("z", "first");
  report.set("a", 3);
  report.set("big", std::int64_t{9007199254740993});
  report.set("seed", std::numeric_limits<std::uint64_t>::max());
  report.set("flag", true);
  report.set("none", std::optional<double>());
  report.set("some", std::optional<double>(0.25));
  report.set("null", nullptr);
  report.set("reals", std::vector<double>{0.5, -1});
  report.set("words", std::vector<std::string>{"x", "y"});
  report.set("counts", std::vector<std::int64_t>{});
  report.set({"algorithms", "standard", "reads"}, 12);
  report.set({"algorithms", "standard", "writes"}, 4);
  report.set({"algorithms", "q_outer"}, nullptr);
  report.set("z", std::string("second"));
  CHECK(report.text() ==
        R"({"z":"second","a":3,"big":9007199254740993,"seed":18446744073709551615,)"
        R"("flag":true,"none":null,"some":0.25,"null":null,"reals":[0.5,-1.0],)"
        R"("words":["x","y"],"counts":[],)"
        R"("algorithms":{"standard":{"reads":12,"writes":4},"q_outer":null}})");
  CHECK_THROWS_AS(report.set({"a", "b"}, 1), std::logic_error);
}

TEST_CASE("cpu: numbers in a report come back with the same bits") {
  for (const double number : {0.1, 1.0 / 3, 1e-310, 1.7976931348623157e308, 123456789.125,
                              static_cast<double>(0.1f), 1e22, 5e-324}) {
    cli::Report report;
    report.set("x", number);
    const std::string text = report.text();
    CHECK(std::strtod(text.c_str() + std::string(R"({"x":)").size(), nullptr) == number);
  }
}

TEST_CASE("cpu: numbers that are not finite are strings in a report") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  cli::Report report;
  report.set("m", -inf);
  report.set("x", std::vector<double>{std::nan(""), -std::nan(""), inf, -0.0});
  report.set("f", std::numeric_limits<float>::infinity());
  CHECK(report.text() == R"({"m":"-inf","x":["nan","nan","inf",-0.0],"f":"inf"})");
}

TEST_CASE("cpu: text in a report is escaped and always UTF-8") {
  cli::Report report;
  report.set("path", "a\"b\\c\n\xff");
  CHECK(report.text() == "{\"path\":\"a\\\"b\\\\c\\n\xEF\xBF\xBD\"}");
  const Outcome printed = run([&](const Arguments&) { report.print(); });
  CHECK(printed.out == report.text() + "\n");
}

// ---- files ---------------------------------------------------------------------------------

TEST_CASE("cpu: the output directory is created or refused in one sentence") {
  const test::TemporaryFolder folder;
  const std::string deep = folder.file("a/b/c");
  CHECK(cli::make_output_directory(deep) == deep);
  CHECK(std::filesystem::is_directory(deep));
  CHECK(cli::make_output_directory(deep + "/") == deep + "/");
  std::ofstream(folder.file("file")) << "x";
  for (const std::string name : {"file", "file/below"}) {
    const std::string path = folder.file(name);
    CHECK(usage_error([&] { cli::make_output_directory(path); }) ==
          "--out: cannot use '" + path + "' as the output directory: Not a directory");
  }
  CHECK_FALSE(usage_error([] { cli::make_output_directory(""); }).empty());
}

TEST_CASE("cpu: an output directory that cannot be written to is refused") {
  using std::filesystem::perms;
  const test::TemporaryFolder folder;
  const std::string locked = folder.file("locked");
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(folder.path(), perms::all);
  std::filesystem::permissions(
      locked, perms::all & ~(perms::owner_write | perms::group_write | perms::others_write));
  for (const std::string& path : {locked, locked + "/below"}) {
    const Outcome outcome = run([&](const Arguments&) {
      // root may write anywhere
      if (::geteuid() == 0 && ::setuid(65534) != 0) throw std::runtime_error("still root");
      cli::make_output_directory(path);
    });
    if (outcome.err == "error: still root\n") {
      MESSAGE("not checked: this root cannot become someone else");
      return;
    }
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.err == "error: --out: cannot use '" + path +
                             "' as the output directory: Permission denied\n");
  }
}

TEST_CASE("cpu: input files have the type that their content allows") {
  const test::TemporaryFolder folder;
  const std::vector<NpyArray> arrays = {{{1}, std::vector<float>{1}},
                                        {{1}, std::vector<double>{1}},
                                        {{1}, std::vector<std::int32_t>{1}},
                                        {{1}, std::vector<std::int64_t>{1}},
                                        {{1}, std::vector<std::uint8_t>{1}}};
  using cli::Content;
  for (const NpyArray& array : arrays) {
    const std::string path = folder.file("x.npy"), dtype = dtype_name(array);
    write_npy(path, array);
    const auto error = [&](Content content) {
      return usage_error([&] {
        const cli::Input input = cli::read_input(path, "--x", content);
        CHECK(input.file == path);
        CHECK(input.array.data == array.data);
      });
    };
    const auto expected = [&](const std::string& allowed) {
      const bool fits = allowed.find(dtype) != std::string::npos;
      return fits ? "" : path + " is " + dtype + ", expected " + allowed;
    };
    CHECK(error(Content::kData) == expected("f4 or f8"));
    CHECK(error(Content::kTable) == expected("i4 or i8"));
    CHECK(error(Content::kMask) == expected("u1"));
  }
  const std::string missing = folder.file("missing.npy");
  CHECK(usage_error([&] { cli::read_input(missing, "--q"); }) ==
        "--q: " + missing + ": no such file");
}

TEST_CASE("cpu: input files must share one type") {
  const cli::Input q{"q.npy", {{0}, std::vector<float>()}};
  const cli::Input k{"k.npy", {{0}, std::vector<double>()}};
  cli::require_same_dtype({});
  cli::require_same_dtype({&q, &q});
  CHECK(usage_error([&] {
          cli::require_same_dtype({&q, &q, &k});
        }) == "k.npy is f8, but q.npy is f4");
}

TEST_CASE("cpu: dimensions of input files agree by name") {
  const auto input = [](const char* file, std::vector<std::int64_t> shape) {
    return cli::Input{file, {std::move(shape), std::vector<float>()}};
  };
  const auto error = [](cli::Dimensions& sizes, const cli::Input& file,
                        const std::vector<std::string>& names) {
    return usage_error([&] { sizes.require(file, names); });
  };
  cli::Dimensions sizes;
  CHECK(error(sizes, input("q.npy", {2, 3, 4}), {"N", "d"}) ==
        "q.npy: expected [N, d], found [2, 3, 4]");
  CHECK(error(sizes, input("q.npy", {}), {"N", "d"}) == "q.npy: expected [N, d], found []");
  CHECK(error(sizes, input("q.npy", {5, 64}), {"Nq", "d"}).empty());
  CHECK(error(sizes, input("k.npy", {7, 32}), {"Nk", "d"}) ==
        "k.npy: dimension 1 (d) is 32, but q.npy has d = 64");
  CHECK(error(sizes, input("k.npy", {7, 64}), {"Nk", "d"}).empty());
  CHECK(error(sizes, input("v.npy", {8, 64}), {"Nk", "d"}) ==
        "v.npy: dimension 0 (Nk) is 8, but k.npy has Nk = 7");
  CHECK(sizes["Nq"] == 5);
  CHECK(sizes["Nk"] == 7);
  CHECK(sizes["d"] == 64);
  CHECK(error(sizes, input("s.npy", {3, 4}), {"n", "n"}) ==
        "s.npy: dimension 1 (n) is 4, but s.npy has n = 3");
  CHECK(error(sizes, input("kv.npy", {3, 4}), {"2", "blocks"}) ==
        "kv.npy: dimension 0 is 3, expected 2");
  CHECK(error(sizes, input("kv.npy", {2, 4}), {"2", "blocks"}).empty());
  sizes.require_range("d", 1, 64);
  sizes.require_range("d", 64, 256);
  CHECK(usage_error([&] { sizes.require_range("d", 1, 63); }) ==
        "q.npy: dimension 1 (d) is 64, expected 1 to 63");
  CHECK_FALSE(usage_error([&] { sizes.require_range("d", 65, 256); }).empty());
}

// The course tool's handling of text: regions, bodies, manifests, lessons, reports, archives.
#include <doctest/doctest.h>

#include "common/cli/error.hpp"
#include "common/course/body.hpp"
#include "common/course/lessons.hpp"
#include "common/course/manifest.hpp"
#include "common/course/regions.hpp"
#include "common/course/scratch.hpp"
#include "common/course/student.hpp"
#include "common/course/test_run.hpp"
#include "common/course/verdict.hpp"
#include "common/course/zip.hpp"
#include "tests/support/program.hpp"

using namespace flash_steps;
using namespace flash_steps::course;

namespace {

const std::string kFile = "chapters/04_causal/walk.cpp";

std::string problems_of(const std::string& text, const std::string& file = kFile) {
  std::vector<Problem> problems;
  scan_text(file, text, problems);
  std::string all;
  for (const Problem& problem : problems) all += problem.text() + "\n";
  return all;
}

}  // namespace

TEST_CASE("cpu: regions are found with their lines") {
  std::vector<Problem> problems;
  const std::string text = "a\n  // [begin 04.walk]\n  b\n\n  c\n  // [end]\nd\n";
  const auto regions = scan_text(kFile, text, problems);
  CHECK(problems.empty());
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].id == "04.walk");
  CHECK(regions[0].begin == 2);
  CHECK(regions[0].end == 6);
  CHECK(regions[0].body == "  b\n\n  c\n");
  CHECK(indentation(regions[0].body) == "  ");
}

TEST_CASE("cpu: wrong marks are named with file and line") {
  CHECK(problems_of("// [begin 04.a]\n// [begin 04.b]\n// [end]\n") ==
        kFile + ":2: region 04.b begins inside region 04.a, which began in line 1\n");
  CHECK(problems_of("x\n// [begin 04.a]\n") == kFile + ":2: region 04.a is never closed\n");
  CHECK(problems_of("// [end]\n") == kFile + ":1: [end] without a [begin ...]\n");
  CHECK(problems_of("// [begin 05.a]\n// [end]\n") ==
        kFile + ":1: region 05.a: its number must be 04\n");
  CHECK(problems_of("// [begin 04.a-cuda]\n// [end]\n") ==
        kFile + ":1: region 04.a-cuda ends in -cuda, but is not in a .cu or .cuh\n");
  CHECK(problems_of("// [begin 04.a]\n// [end]\n", "chapters/04_causal/walk.cu") ==
        "chapters/04_causal/walk.cu:1: region 04.a is device code: its id must end in -cuda\n");
  CHECK(problems_of("int x;  // [begin 04.a]\n") ==
        kFile +
            ":1: a mark must be a line of its own: \"// [begin NN.name]\" or \"// [end]\"\n");
  CHECK(problems_of("// [begin walk]\n// [end]\n").find("is no region id") !=
        std::string::npos);

  std::vector<Problem> problems;
  const std::string once = "// [begin 04.a]\nx\n// [end]\n";
  scan_texts({{"chapters/04_x/a.cpp", once}, {"chapters/04_x/b.cpp", "\n" + once}}, problems);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].text() ==
        "chapters/04_x/b.cpp:2: region 04.a is there twice: also in chapters/04_x/a.cpp:1");
}

TEST_CASE("cpu: marks that students' editors touched") {
  std::vector<Problem> problems;
  const auto regions = scan_text(kFile,
                                 "\t// [begin 04.a] \nx;  // [end of the step]\n" +
                                     std::string(300000, 'x') + "\n  // [end]\t\n",
                                 problems);
  CHECK(problems.empty());
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].body == "x;  // [end of the step]\n" + std::string(300000, 'x') + "\n");

  // an [end] is gone: the region after it is still there, and the one before is not
  const auto rest =
      scan_text(kFile, "// [begin 04.a]\nx\n// [begin 04.b]\ny\n// [end]\n", problems);
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].id == "04.b");
  CHECK(rest[0].body == "y\n");
  CHECK(problems.size() == 1);
}

TEST_CASE("cpu: bodies are replaced and put back byte by byte") {
  const std::string text =
      "a\n// [begin 04.a]\n\tx\n// [end]\nb\n// [begin 04.b]\ny\n// [end]\nno newline at the "
      "end";
  CHECK(replace_bodies(kFile, text, {}) == text);
  const std::string blank = replace_bodies(kFile, text, {{"04.a", ""}, {"04.b", "z\nz\n"}});
  CHECK(blank ==
        "a\n// [begin 04.a]\n// [end]\nb\n// [begin 04.b]\nz\nz\n// [end]\nno newline at the "
        "end");
  CHECK(replace_bodies(kFile, blank, {{"04.a", "\tx\n"}, {"04.b", "y\n"}}) == text);
}

TEST_CASE("cpu: comments and literals are no code") {
  CHECK(code_only("a // b\nc /* d\ne */ f \"g\\\"{\" 'h' i") ==
        "a     \nc     \n     f            i");
  CHECK(code_only("R\"x({)\")x\" 1'000") == "R          1'000");
}

TEST_CASE("cpu: not started is what has no code or a todo") {
  CHECK(is_not_started(""));
  CHECK(is_not_started("  // only a comment\n"));
  CHECK(is_not_started("  int x = 1;\n  return todo( \"04.a\");\n"));
  CHECK_FALSE(is_not_started("  // was: todo(\"04.a\");\n  return 1;\n"));
  CHECK_FALSE(is_not_started("  return my_todo(1);\n"));
}

TEST_CASE("cpu: lines that reach beyond the marks are refused") {
  const auto what = [](const std::string& body) {
    const auto problem = find_body_problem(body);
    return problem ? std::to_string(problem->line) + ": " + problem->what : "";
  };
  CHECK(what("if (a) {\n  f(b[1]);\n}\n").empty());
  CHECK(what("#pragma unroll\nfor (;;) {}\n").empty());
  CHECK(what("f();\n}\nint evil = 1;\nvoid g() {\n") ==
        "2: this '}' closes nothing between the marks");
  CHECK(what("if (a) {\n  b;\n") == "1: this '{' is never closed");
  CHECK(what("f(a];\n") == "1: this ']' closes nothing between the marks");
  for (const char* line : {"#define CHECK(x) (void)0", "  # include \"/etc/passwd\"",
                           "/* */ #undef CHECK", "\f#define x", "#pragma GCC system_header"}) {
    CAPTURE(line);
    CHECK(what(std::string("f();\n") + line + "\n") ==
          "2: no line with # may stand here but #pragma unroll");
  }
  CHECK(what("// # of keys { (\nf(\"# {\");\n").empty());

  // what would make the compiler read other lines than the marks show
  const std::string backslash = "no line may end in \\ here";
  CHECK(what("// C:\\\n/*\n#define CHECK(x)\n// */\n") == "1: " + backslash);
  CHECK(what("f();\n// \\ \t\n/*\n#undef CHECK\n*/\n") == "2: " + backslash);
  CHECK(what("f();\n%> int g() <% return 1;\n") ==
        "2: write { } # for <%, or put blanks into it");
  CHECK(what("%:define CHECK(x)\n") == "1: write { } # for %:, or put blanks into it");
  const std::string unclosed = "the comment or literal that begins here is never closed";
  CHECK(what("f();\n/* } \n") == "2: " + unclosed);
  CHECK(what("f(R\"x({)\");\n") == "1: " + unclosed);
  CHECK(what("char c = 'a;\n") == "1: " + unclosed);
  CHECK(what("(void)L'\"'; } int g() { (void)L'\"';\n") ==
        "1: this '}' closes nothing between the marks");
  CHECK(
      what("(void)u8\"{\"; (void)u8'{'; (void)LR\"({)\"; n = 1'000 + 0x1'0; a % b;\n").empty());
}

TEST_CASE("cpu: a manifest with a mistake is refused with the entry's name") {
  const auto with = [](const std::string& regions, const std::string& tests) {
    return R"({"limits": {"test_seconds": 1, "build_seconds": 1, "memory_gib": 1}, "leave_out": [],
      "chapters": [{"directory": "04_x", "title": "X", "regions": {)" +
           regions + R"(}, "tests": {)" + tests + "}}]}";
  };
  const std::string good =
      R"("04.a": {"points": 2, "needs": "cpu", "todo": "Do it."}, "04.b": "given")";
  const Manifest manifest = parse_manifest(with(good, R"("cpu: one": ["04.a"])"));
  CHECK(manifest.region("04.a").stub == "todo(\"04.a\");");
  CHECK(manifest.region("04.a").tests == std::vector<std::string>{"cpu: one"});
  CHECK(manifest.ids() == std::vector<std::string>{"04.a"});
  CHECK_THROWS_AS(manifest.region("04.b"), cli::UsageError);
  CHECK_THROWS_AS(manifest.chapter("05"), cli::UsageError);

  const auto error = [&](const std::string& regions, const std::string& tests) -> std::string {
    try {
      parse_manifest(with(regions, tests));
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error(R"("04.a": {"points": 2, "needs": "tpu", "todo": "x"})", "") ==
        "chapters/course.json: 04.a: needs must be cpu, sim or gpu, found \"tpu\"");
  CHECK(error(R"("04.a": {"point": 2, "needs": "cpu", "todo": "x"})", "") ==
        "chapters/course.json: 04.a: \"point\" is no field of it");
  CHECK(error(R"("05.a": "given")", "").find("05.a: is no id of chapter 04_x") !=
        std::string::npos);
  CHECK(error(good, R"("cpu: one": ["04.c"])").find("names 04.c, which is no graded id") !=
        std::string::npos);
  CHECK(parse_manifest(with(good, R"("cpu: one": ["04.a", "04.b"])"))
            .region("04.a")
            .tests.size() == 1);
  CHECK(error(good, R"("cpu: a, b": ["04.a"])").find("no comma") != std::string::npos);
  CHECK(error(R"("04.a": {"points": 2, "needs": "cpu", "todo": "x", "stub": "return 0;"})", "")
            .find("its stub does not say todo") != std::string::npos);
  CHECK(error("x", "").find("parse error") != std::string::npos);
}

TEST_CASE("cpu: chapters are numbers and ranges") {
  CHECK(parse_chapters("1-3,05") == std::set<std::string>{"01", "02", "03", "05"});
  CHECK_THROWS_AS(parse_chapters("1-"), cli::UsageError);
  CHECK_THROWS_AS(parse_chapters("one"), cli::UsageError);
  CHECK_THROWS_AS(parse_chapters("1,,2"), cli::UsageError);
}

TEST_CASE("cpu: hints are items of a list below the id") {
  const std::string page = "# H\n\n## 01.a\n\n1. one\n   more\n2. two\n\n## 01.b\n\n1. other\n";
  CHECK(parse_hints(page, "01.a") == std::vector<std::string>{"one more", "two"});
  CHECK(parse_hints(page, "01.b") == std::vector<std::string>{"other"});
  CHECK(parse_hints(page, "01.c").empty());
  CHECK(plain_maths("is $l' = l\\,e^{m - m'}$ and $\\mathrm{LSE} = m + \\ln l$") ==
        "is l' = l e^(m - m') and LSE = m + ln l");
  CHECK(plain_maths("$\\lceil M / 4d \\rceil$, $-\\infty$") == "ceil(M / 4d), -inf");
}

TEST_CASE("cpu: only a finished report with the token counts") {
  const auto outcome = [](const std::string& report) {
    return read_report(report, "t0", "cpu: a").outcome;
  };
  const std::string good = "token t0\ncase cpu: a\nassertions 3\nfailed 0\nend\n";
  CHECK(outcome(good) == Outcome::passed);
  CHECK(outcome("") == Outcome::ended);
  CHECK(outcome("token t1" + good.substr(8)) == Outcome::ended);
  CHECK(outcome("token t0\n") == Outcome::empty);
  CHECK(outcome("token t0\ncase cpu: a\nassertions 0\nfailed 0\nend\n") == Outcome::empty);
  CHECK(outcome("token t0\ncase cpu: b\nassertions 3\nfailed 0\nend\n") == Outcome::empty);
  CHECK(outcome("token t0\ncase cpu: a\nassertions 3\nfailed 0\nskipped\nend\n") ==
        Outcome::skipped);
  CHECK(outcome("token t0\ncase cpu: a\nassertions 3\nfailed 1\nwhat threw not started: "
                "01.a\nend\n") == Outcome::not_started);

  const TestResult failed = read_report(
      "token t0\ncase cpu: a\nassertions 3\nfailed 1\nwhere /x/tests/04.cpp:9\nwhat the first "
      "element that differs\n"
      "context N := 5\ncontext r := 1\ncontext c := 2\ncontext a := 0.5\ncontext e := "
      "0.25\ncontext tolerance := 1e-06\nend\n",
      "t0", "cpu: a");
  CHECK(failed.outcome == Outcome::failed);
  CHECK(failed.details ==
        std::vector<std::string>{"first wrong element (1, 2): expected 0.25, got 0.5",
                                 "with N = 5", "at tests/04.cpp:9"});

  const TestResult nan = read_report(
      "token t0\ncase cpu: a\nassertions 1\nfailed 1\nwhat CHECK( lse == 1 ) is -nan == 1\n"
      "context m := -nan\ncontext where := the-nano-one\nend\n",
      "t0", "cpu: a");
  CHECK(nan.details == std::vector<std::string>{"CHECK( lse == 1 ) is nan == 1",
                                                "with m = nan, where = the-nano-one"});
}

TEST_CASE("cpu: every state has a name that is read back") {
  for (const State state :
       {State::not_started, State::does_not_compile, State::crashed, State::timed_out,
        State::wrong, State::needs_gpu, State::not_on_gpu, State::done}) {
    CHECK(parse_state(to_string(state)) == state);
    const bool good = state == State::not_on_gpu || state == State::done;
    CHECK(passes(state) == good);
  }
}

TEST_CASE("cpu: errors are found in what compilers print") {
  const std::string log =
      "[1/3] Building\nFAILED: x.o\n/usr/bin/c++ -DX=error\nchapters/a.cpp:3:5: error: "
      "expected ';'\n    3 | x\n"
      "a.cu(7): error: identifier \"y\" is undefined\nld: sum.cpp:(.text+0x1): undefined "
      "reference to `f()'\n"
      "chapters/a.cpp:3:5: error: expected ';'\n"  // again
      "ninja: build stopped\n";
  const auto errors = find_errors(log, 10);
  REQUIRE(errors.size() == 3);
  CHECK(errors[0] == "chapters/a.cpp:3:5: error: expected ';'");
  CHECK(errors[1] == "a.cu(7): error: identifier \"y\" is undefined");
  CHECK(find_errors(log, 1).size() == 1);
}

TEST_CASE("cpu: base64 and CRC-32 are the standards'") {
  for (const auto& [bytes, text] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}}) {
    CHECK(to_base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  CHECK(from_base64(to_base64(all)) == all);
  CHECK(crc32("123456789") == 0xCBF43926u);
}

TEST_CASE("cpu: an archive holds its files and their permissions") {
  const std::string zip = make_zip({{"a/b.txt", "hello", false}, {"run", "#!/bin/sh\n", true}});
  const auto number = [&](std::size_t at, int size) {
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(zip[at + static_cast<std::size_t>(i)]);
    return value;
  };
  CHECK(zip.substr(30, 12) == "a/b.txthello");
  CHECK(number(14, 4) == crc32("hello"));
  const std::size_t end = zip.size() - 22, directory = number(end + 16, 4);
  CHECK(zip.substr(end, 4) == "PK\5\6");
  CHECK(number(end + 8, 2) == 2);
  CHECK(zip.substr(directory, 4) == "PK\1\2");
  CHECK((number(directory + 38, 4) >> 16) == 0100644);
  const std::size_t second = directory + 46 + 7;
  CHECK((number(second + 38, 4) >> 16) == 0100755);
  CHECK(zip.substr(number(second + 42, 4), 4) == "PK\3\4");
}

TEST_CASE("cpu: files below a folder, without builds and hidden ones") {
  const test::TemporaryFolder folder;
  for (const char* file : {"a.txt", "sub/b.txt", "build/c.txt", "build-2/c.txt", ".git/d",
                           ".clang-format", "sub/build/e"}) {
    write_file(folder.path() / file, "x");
  }
  CHECK(project_files(folder.path()) ==
        std::vector<std::string>{".clang-format", "a.txt", "sub/b.txt", "sub/build/e"});
  CHECK(is_below("tests/mutants/x", {"tests/mutants"}));
  CHECK_FALSE(is_below("tests/mutants2", {"tests/mutants"}));
  CHECK(write_if_changed(folder.path() / "a.txt", "y"));
  CHECK_FALSE(write_if_changed(folder.path() / "a.txt", "y"));
}

// A small homework, from the reference to grades: tests/course/mini, of one chapter that
// compiles in a second.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "common/cli/error.hpp"
#include "common/course/autograder.hpp"
#include "common/course/grade.hpp"
#include "common/course/lessons.hpp"
#include "common/course/process.hpp"
#include "common/course/progress.hpp"
#include "common/course/reports.hpp"
#include "common/course/student.hpp"
#include "common/course/verify.hpp"
#include "tests/support/program.hpp"

using namespace flash_steps;
using namespace flash_steps::course;

namespace {

const fs::path kSource = FLASH_STEPS_SOURCE_DIR;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// The mini reference, and a starter made from it, in a folder of their own.
struct Homework {
  Homework() {
    const fs::path mini = kSource / "tests/course/mini";
    for (const std::string& file : project_files(mini)) {
      std::string text = read_file(mini / file);
      replace_all(text, "@SOURCE@", kSource.string());
      write_file(folder.path() / "reference" / file, text);
    }
    const Project reference = load_project(folder.path() / "reference");
    write_starter(reference, make_starter(reference, {"01"}), root());
  }
  fs::path root() const { return folder.path() / "starter"; }
  fs::path file() const { return root() / "chapters/01_sum/sum.cpp"; }
  test::TemporaryFolder folder;
};

// A submission that is the starter with these bodies.
fs::path submit(const Homework& homework, const std::string& name,
                const std::map<std::string, std::string>& bodies) {
  const fs::path folder = homework.folder.path() / "submissions" / name;
  for (const char* file : {"chapters/01_sum/sum.cpp", "chapters/01_sum/twice.cuh"}) {
    write_file(folder / file, replace_bodies(file, read_file(homework.root() / file), bodies));
  }
  return folder;
}

const std::map<std::string, std::string> kRight{
    {"01.sum",
     "  double all = 0;\n  for (std::size_t i = 0; i < x.size(); ++i) all = all + value(x, "
     "i);\n  return all;\n"},
    {"01.mean", "  return sum(x) / double(x.size());\n"},
    {"01.twice-cuda", "  x = x + x;\n"},
    {"01.raw-cuda", "  (void)1;\n"}};

std::map<std::string, std::string> right_but(const std::string& id, const std::string& body) {
  auto bodies = kRight;
  bodies[id] = body;
  return bodies;
}

Grade graded(const Project& project, const fs::path& folder) {
  CheckSettings settings;
  settings.seed = 77;
  settings.jobs = 2;
  return grade(project, read_submission(project, folder), settings);
}

const Verdict& of(const Grade& grade, const std::string& id) {
  for (const Verdict& verdict : grade.verdicts) {
    if (verdict.id == id) return verdict;
  }
  throw std::runtime_error("no " + id);
}

std::string line(const Verdict& verdict, std::size_t i = 0) {
  return i < verdict.lines.size() ? verdict.lines[i] : "";
}

}  // namespace

TEST_CASE("cpu: a starter has todos and packed solutions and pages without them") {
  const Homework homework;
  const Project reference = load_project(homework.folder.path() / "reference"),
                starter = load_project(homework.root());
  CHECK(starter.is_starter);
  const std::string text = read_file(homework.file());
  CHECK(contains(text,
                 "  // [begin 01.sum]\n  // Add up the values.\n  return todo(\"01.sum\");\n  "
                 "// [end]\n"));
  CHECK(contains(text, "return 42;"));
  CHECK_FALSE(contains(text, "total"));
  CHECK(starter.regions.at("01.sum").body == reference.regions.at("01.sum").body);
  CHECK(starter.reference_text("chapters/01_sum/sum.cpp") ==
        reference.reference_text("chapters/01_sum/sum.cpp"));

  const std::string page = read_file(homework.root() / "chapters/01_sum/README.md");
  CHECK(contains(page, "> **Yours to write:** `01.sum`, in `sum.cpp`. Add up the values."));
  CHECK(contains(page, "| `01.mean` | [sum.cpp](sum.cpp) | Divide the sum by the count. |\n"));
  CHECK_FALSE(contains(page, "total"));
  CHECK(contains(page, "return 42;"));
  CHECK(contains(
      page,
      "[sum.cpp](sum.cpp); more in the other chapter and [on the web](https://example.org)"));

  CHECK_FALSE(fs::exists(homework.root() / "chapters/01_sum/hints.md"));
  CHECK(parse_hints(starter.reference_text("chapters/01_sum/hints.md"), "01.sum").size() == 3);
  CHECK_FALSE(fs::exists(homework.root() / "docs"));
  CHECK(contains(read_file(homework.root() / "README.md"), "| 7, 1 more on a GPU |"));
  CHECK(contains(read_file(homework.root() / "README.md"), "3 exercises, 7 points"));
  CHECK(read_file(homework.root() / "chapters/CMakeLists.txt") == "add_chapter(01_sum)\n");
  CHECK_THROWS_AS(make_starter(starter, {"01"}), cli::UsageError);
  CHECK_THROWS_AS(write_starter(reference, {}, homework.root()), cli::UsageError);
  CHECK_THROWS_AS(make_starter(reference, {"02"}), cli::UsageError);
}

TEST_CASE("cpu: unlisted regions and listed ones that are missing are errors") {
  const Homework homework;
  const fs::path root = homework.folder.path() / "reference";
  const std::string file = "chapters/01_sum/sum.cpp", text = read_file(root / file);
  write_file(root / file, text + "// [begin 01.new]\nint y;\n// [end]\n");
  CHECK_THROWS_WITH_AS(load_project(root), "1 problems with the marked regions",
                       std::runtime_error);
  write_file(root / file, text.substr(0, text.find("double shown")));
  CHECK_THROWS_AS(load_project(root), std::runtime_error);
}

TEST_CASE("cpu: submissions get what they deserve") {
  const Homework homework;
  const Project project = load_project(homework.root());
  const auto grade_of = [&](const std::string& name,
                            const std::map<std::string, std::string>& bodies) {
    return graded(project, submit(homework, name, bodies));
  };

  const Grade right = grade_of("right", kRight);
  CHECK(right.points() == 7);  // the id that needs a GPU does not count without one
  CHECK(right.most_points() == 7);
  CHECK(of(right, "01.sum").state == State::done);
  CHECK(of(right, "01.twice-cuda").state == State::not_on_gpu);
  CHECK(of(right, "01.raw-cuda").state == State::needs_gpu);

  const Grade nothing = grade_of("nothing", {});
  CHECK(nothing.points() == 0);
  for (const Verdict& verdict : nothing.verdicts) CHECK(verdict.state == State::not_started);

  const Grade missing = graded(project, homework.folder.path() / "nowhere");
  CHECK(missing.points() == 0);
  CHECK(contains(line(of(missing, "01.sum")), "sum.cpp: the file is missing"));

  const Grade syntax = grade_of("syntax", right_but("01.mean", "  return sum(x) +;\n"));
  CHECK(of(syntax, "01.mean").state == State::does_not_compile);
  CHECK(contains(line(of(syntax, "01.mean")), "chapters/01_sum/sum.cpp:17:"));
  CHECK(syntax.points() == 5);

  const Grade loop =
      grade_of("loop", right_but("01.sum", "  for (volatile int i = 0;; i = i + 1) {}\n"));
  CHECK(of(loop, "01.sum").state == State::timed_out);
  CHECK(loop.points() == 3);  // mean is tried on the reference's sum

  const Grade leaver = grade_of("exit", right_but("01.sum", "  std::_Exit(0);\n"));
  CHECK(of(leaver, "01.sum").state == State::crashed);
  CHECK(contains(line(of(leaver, "01.sum")), "ended by itself (exit code 0)"));
  CHECK(leaver.points() == 3);

  const Grade endless =
      grade_of("endless", right_but("01.sum", "  while (true) __builtin_puts(\"" +
                                                  std::string(1000, 'x') + "\");\n"));
  CHECK(of(endless, "01.sum").state == State::crashed);
  CHECK(contains(line(of(endless, "01.sum")), "SIGXFSZ: it wrote more than 64 MiB"));

  const Grade crash = grade_of(
      "crash", right_but("01.mean", "  return *static_cast<volatile double*>(nullptr);\n"));
  CHECK(of(crash, "01.mean").state == State::crashed);
  CHECK(contains(line(of(crash, "01.mean")), "SIGSEGV"));
  CHECK(crash.points() == 5);

  const Grade wrong = grade_of("wrong", right_but("01.sum", "  return x.empty() ? 0 : 1;\n"));
  CHECK(of(wrong, "01.sum").state == State::wrong);
  CHECK(line(of(wrong, "01.sum")) == "first wrong element 0: expected 6.5, got 1");
  CHECK(line(of(wrong, "01.sum"), 3) == "the same data again: course check 01.sum --seed 77");
  CHECK(wrong.points() == 3);

  const Grade greedy = grade_of(
      "greedy", right_but("01.sum",
                          "  double all = 0;\n  for (std::size_t i = 0; i < x.size(); ++i) { "
                          "value(x, i); all += value(x, i); }\n  return all;\n"));
  CHECK(of(greedy, "01.sum").state == State::done);
  CHECK(greedy.points() == 6);
  CHECK(contains(line(of(greedy, "01.sum"), 1), "3 of 4 points"));
}

TEST_CASE("cpu: what is not between the marks has no effect") {
  const Homework homework;
  const Project project = load_project(homework.root());
  const fs::path cheat = submit(homework, "cheat", {{"01.sum", "  return 0;\n"}});
  write_file(cheat / "tests/01_sum.cpp", "int main() {}\n");
  const fs::path file = cheat / "chapters/01_sum/sum.cpp";
  write_file(file, "#define todo(x) 6.5\n" + read_file(file));
  const Submission submission = read_submission(project, cheat);
  CHECK(submission.changed_outside ==
        std::vector<std::string>{"chapters/01_sum/sum.cpp: #define todo(x) 6.5",
                                 "tests/01_sum.cpp"});
  const Grade cheated = graded(project, cheat);
  CHECK(cheated.points() == 0);
  CHECK(of(cheated, "01.sum").state == State::wrong);

  const fs::path macro =
      submit(homework, "macro", {{"01.sum", "#define CHECK(x) (void)0\n  return 0;\n"}});
  CHECK(of(graded(project, macro), "01.sum").state == State::does_not_compile);

  const fs::path broken = submit(homework, "broken", kRight);
  std::string text = read_file(broken / "chapters/01_sum/sum.cpp");
  replace_all(text, "// [begin 01.mean]", "// begin 01.mean");
  write_file(broken / "chapters/01_sum/sum.cpp", text);
  const Grade marks = graded(project, broken);
  CHECK(of(marks, "01.mean").state == State::does_not_compile);
  CHECK(contains(line(of(marks, "01.mean")), "its marks are broken"));

  const fs::path windows = submit(homework, "windows", kRight);
  text = read_file(windows / "chapters/01_sum/sum.cpp");
  replace_all(text, "\n", "\r\n");
  text = "\xEF\xBB\xBF" + text;
  write_file(windows / "chapters/01_sum/sum.cpp", text);
  CHECK(of(graded(project, windows), "01.mean").state == State::done);
  CHECK(read_submission(project, windows).changed_outside.empty());
}

TEST_CASE("cpu: two wrong answers that make up for each other are two wrong answers") {
  const Homework homework;
  const Project project = load_project(homework.root());
  auto bodies = right_but("01.mean", "  return sum(x) / (2 * double(x.size()));\n");
  bodies["01.sum"] =
      "  double all = 0;\n  for (std::size_t i = 0; i < x.size(); ++i) all += 2 * value(x, "
      "i);\n"
      "  return all;\n";
  const Grade pair = graded(project, submit(homework, "pair", bodies));
  CHECK(of(pair, "01.sum").state == State::wrong);
  CHECK(of(pair, "01.mean").state == State::wrong);
  CHECK(pair.points() == 1);
}

TEST_CASE("cpu: odd files spoil what is in them and nothing else") {
  const Homework homework;
  const Project project = load_project(homework.root());
  const std::string file = "chapters/01_sum/sum.cpp";
  const auto of_text = [&](const std::string& name, const std::string& text) {
    const fs::path folder = submit(homework, name, kRight);
    write_file(folder / file, text);
    return read_submission(project, folder);
  };
  const std::string right = read_file(submit(homework, "right", kRight) / file);

  const Submission giant = of_text("giant", right + std::string(2 << 20, ' '));
  CHECK(contains(giant.answers.at("01.sum").problem, "no plain file of at most 1 MiB"));
  const Submission long_line =
      of_text("long", replace_bodies(file, right,
                                     {{"01.sum", kRight.at("01.sum") + "  // " +
                                                     std::string(300000, 'x') + "\n"}}));
  CHECK(contains(long_line.answers.at("01.sum").problem, "more than 64 KiB"));
  CHECK(long_line.answers.at("01.mean").problem.empty());

  std::string text = right;
  text.erase(text.find("  // [end]\n"), 11);
  const Submission unclosed = of_text("unclosed", text);
  CHECK(contains(unclosed.answers.at("01.sum").problem, "its marks are broken"));
  CHECK_FALSE(unclosed.answers.at("01.sum").not_started);
  CHECK(unclosed.answers.at("01.mean").body == kRight.at("01.mean"));

  const fs::path copied = submit(homework, "copied", kRight);
  write_file(copied / "chapters/01_sum/twice.cuh",
             read_file(copied / "chapters/01_sum/twice.cuh") +
                 "// [begin 01.sum]\n  return 0;\n// [end]\n");
  CHECK(read_submission(project, copied).answers.at("01.sum").body == kRight.at("01.sum"));

  const fs::path linked = submit(homework, "linked", kRight);
  fs::remove(linked / file);
  fs::create_symlink("sum.cpp", linked / file);
  CHECK(read_submission(project, linked).answers.at("01.sum").not_started);
}

TEST_CASE("cpu: everybody in a folder of submissions has a row") {
  const Homework homework;
  const fs::path folder = homework.folder.path() / "submissions";
  submit(homework, "anne", kRight);
  write_file(folder / "flat/sum.cpp", read_file(folder / "anne/chapters/01_sum/sum.cpp"));
  fs::create_directories(folder / "nothing");
  fs::create_directories(folder / "loop");
  fs::create_symlink("chapters", folder / "loop/chapters");
  const auto grade = test::run_program(
      FLASH_STEPS_COURSE, {"grade", folder.string(), "--csv", "--no-gpu", "--seed", "77",
                           "--root", homework.root().string()});
  CHECK(grade.exit_code == 0);
  CHECK(contains(grade.out, "\"anne\",7,7,"));
  CHECK(contains(grade.out, "\"flat\",6,7,"));
  CHECK(contains(grade.out, "\"nothing\",0,7,"));
  CHECK(contains(grade.out, "\"loop\",0,7,"));
}

TEST_CASE("cpu: tested code does not run where the grader works") {
  const Homework homework;
  const Project project = load_project(homework.root());
  const std::string name = "flash_steps_left_by_a_student.txt";
  const Grade grade =
      graded(project, submit(homework, "writer",
                             right_but("01.sum", "  (void)!std::system(\"touch " + name +
                                                     "\");\n" + kRight.at("01.sum"))));
  CHECK(of(grade, "01.sum").state == State::done);
  CHECK_FALSE(fs::exists(name));
}

TEST_CASE("cpu: an exercise that nobody could have points for is not handed out") {
  const Homework homework;
  const fs::path root = homework.folder.path() / "reference";
  std::string manifest = read_file(root / "chapters/course.json");
  replace_all(manifest, "\"cpu: the mean of a few\": [\"01.sum\", \"01.mean\"]",
              "\"cpu: the mean of a few\": [\"01.sum\"]");
  write_file(root / "chapters/course.json", manifest);
  CHECK_THROWS_WITH_AS(make_starter(load_project(root), {"01"}),
                       "no test belongs to 01.mean in chapters/course.json; `course learn 01` "
                       "finds some",
                       cli::UsageError);
  CHECK_THROWS_WITH_AS(parse_chapters("4-2"), "--chapters: 4-2 is no range", cli::UsageError);
}

TEST_CASE("cpu: a starter without its solutions is not taken for the reference") {
  const Homework homework;
  fs::remove_all(homework.root() / ".course");
  CHECK_THROWS_WITH_AS(
      load_project(homework.root()),
      ".course/solutions.json is missing, and 01.mean is not written: copy the "
      "starter with its hidden folders",
      std::runtime_error);
}

TEST_CASE("cpu: two programs may note progress at a time") {
  const Homework homework;
  const Project project = load_project(homework.root());
  Progress first(project), second(project);
  Verdict verdict;
  verdict.id = "01.sum";
  verdict.state = State::done;
  first.remember(verdict, {});
  second.give_hint("01.mean");
  CHECK(Progress(project).last_state("01.sum") == State::done);
  CHECK(Progress(project).hints("01.mean") == 1);
  write_file(homework.root() / ".course/progress.json", "{\"01.sum\": 3}");
  CHECK_FALSE(Progress(project).last_state("01.sum"));
}

TEST_CASE("cpu: the manifest says which tests there must be") {
  const Homework homework;
  std::string manifest = read_file(homework.root() / "chapters/course.json");
  for (const char* name : {"cpu: asserts nothing", "cpu: is not there"}) {
    CAPTURE(name);
    std::string changed = manifest;
    replace_all(changed, "cpu: the sum of none is 0", name);
    write_file(homework.root() / "chapters/course.json", changed);
    const Project project = load_project(homework.root());
    const Grade grade = graded(project, submit(homework, "right", kRight));
    CHECK(of(grade, "01.sum").points == 0);
    CHECK(of(grade, "01.sum").state == State::wrong);
    CHECK(grade.points() == 3);
  }
  // the data's seed reaches the tests
  replace_all(manifest, "cpu: the sum of none is 0", "cpu: the seed of the data");
  write_file(homework.root() / "chapters/course.json", manifest);
  CHECK(of(graded(load_project(homework.root()), submit(homework, "right", kRight)), "01.sum")
            .points == 4);
}

TEST_CASE("cpu: grades as JSON and JUnit and CSV and for Gradescope") {
  const Homework homework;
  const Project project = load_project(homework.root());
  Grade grade =
      graded(project, submit(homework, "a \"b\" <c>", right_but("01.mean", "  return -1;\n")));
  grade.submission = "a \"b\" <c>";
  Grade named = grade;
  named.submission = "Zo\xC3\xAB \xFF";
  CHECK(contains(to_junit({named}), "name=\"Zo\xC3\xAB \xEF\xBF\xBD\""));
  const std::string json = to_json({grade}), junit = to_junit({grade}),
                    scope = to_gradescope(project, grade);
  CHECK(contains(json, "\"submission\": \"a \\\"b\\\" <c>\""));
  CHECK(contains(json, "\"points\": 5"));
  CHECK(contains(json, "\"state\": \"wrong\""));
  CHECK(contains(junit,
                 "<testsuite name=\"a &quot;b&quot; &lt;c&gt;\" tests=\"6\" failures=\"1\""));
  CHECK(contains(junit, "classname=\"01.mean\" name=\"cpu: the mean of a few\""));
  CHECK(to_csv({grade, grade}) ==
        "submission,points,most_points,01.sum,01.mean,01.twice-cuda,01.raw-cuda\n"
        "\"a \"\"b\"\" <c>\",5,7,4,0,1,0\n\"a \"\"b\"\" <c>\",5,7,4,0,1,0\n");
  CHECK(contains(scope, "\"score\": 5"));
  CHECK(contains(scope, "\"max_score\": 4"));
  CHECK_FALSE(contains(scope, "01.raw-cuda"));
  CHECK(contains(to_text(grade), "5 of 7 points"));
}

TEST_CASE("cpu: the commands of a student") {
  const Homework homework;
  const auto course = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--root", homework.root().string()});
    return test::run_program(FLASH_STEPS_COURSE, arguments);
  };
  const auto write = [&](const std::string& id, const std::string& body) {
    write_file(homework.file(), replace_bodies("chapters/01_sum/sum.cpp",
                                               read_file(homework.file()), {{id, body}}));
  };
  CHECK(contains(course({"next"}).out, "chapters/01_sum/sum.cpp:8"));
  CHECK(contains(course({"next", "1"}).out, "chapters/01_sum/sum.cpp:8"));
  CHECK(course({"next", "13"}).exit_code == 2);
  CHECK(contains(course({"list"}).out, "0 of 3 exercises, 0 of 7 points"));
  CHECK(contains(course({"hint"}).out, "1 of 3  Begin with 0, and go on."));
  const auto second = course({"hint", "01.sum"});
  CHECK(contains(second.out, "2 of 3"));
  CHECK_FALSE(contains(second.out, "3 of 3"));

  CHECK(course({"solution", "01.sum"}).exit_code == 2);
  write("01.sum", kRight.at("01.sum"));
  CHECK(
      contains(course({"list"}).out, "01.sum                       C++    4  not checked yet"));
  const auto check = course({"check", "01.sum", "--seed", "77", "--no-gpu"});
  CHECK(check.exit_code == 0);
  CHECK(contains(check.out, "ok  01.sum: done"));
  CHECK(contains(course({"next"}).out, "01.mean"));
  CHECK(contains(course({"solution", "01.sum"}).out, "total += value(x, i)"));

  write("01.sum", "  return 7;\n");
  CHECK(contains(course({"list"}).out, "edited since it was: done"));
  const auto wrong = course({"check", "01.sum", "--seed", "5"});
  CHECK(wrong.exit_code == 1);
  CHECK(contains(wrong.out, "xx  01.sum: wrong"));
  CHECK(contains(wrong.out, "course check 01.sum --seed 5"));

  const fs::path raw = homework.root() / "chapters/01_sum/twice.cuh";
  write_file(raw, replace_bodies("chapters/01_sum/twice.cuh", read_file(raw),
                                 {{"01.raw-cuda", kRight.at("01.raw-cuda")}}));
  const auto untested = course({"check", "01.raw-cuda", "--no-gpu"});
  CHECK(untested.exit_code == 1);
  CHECK(contains(untested.out, "..  01.raw-cuda: written, needs a GPU"));
  CHECK(contains(course({"check", "01", "--no-gpu"}).out, "\n0 of 3 pass: "));
  CHECK(contains(course({"list"}).out, "01 Sums: 0 of 3"));
  CHECK(course({"solution", "01.raw-cuda", "--no-gpu"}).exit_code == 2);

  const std::string whole = read_file(homework.file());
  write_file(homework.file(), whole + "// [begin 01.mean]\n");
  const auto refused = course({"reset", "01.sum"});
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err, "error: mend this first: chapters/01_sum/sum.cpp:"));
  CHECK(read_file(homework.file()) == whole + "// [begin 01.mean]\n");
  write_file(homework.file(), whole);
  const auto bogus = course({"check", "01.sum", "bogus"});
  CHECK(bogus.exit_code == 2);
  CHECK(bogus.out.empty());  // said before anything is tried

  const auto reset = course({"reset", "01.sum"});
  CHECK(contains(reset.out, ".course/backups/01.sum.1"));
  CHECK(read_file(homework.root() / ".course/backups/01.sum.1") == "  return 7;\n");
  CHECK(contains(course({"list"}).out, "01.sum                       C++    4  not started"));

  CHECK(course({"check", "02"}).exit_code == 2);
  CHECK(course({"check", "01.none"}).err ==
        "error: there is no '01.none'; `course list` shows what there is\n");
  CHECK(course({"hint", "01.shown"}).err ==
        "error: 01.shown is given: there is nothing to do in it\n");
  CHECK(course({"juggle"}).err ==
        "error: there is no command 'juggle'; course --help lists them\n");
  for (const char* seed : {"-3", "x", "99999999999999999999999"}) {
    CHECK(contains(course({"check", "01.sum", "--seed", seed}).err, "error: --seed "));
  }
  CHECK(contains(course({"check", "01.sum", "--jobs", "0"}).err, "error: --jobs "));
  CHECK(course({"--help"}).exit_code == 0);
}

TEST_CASE("cpu: watch answers to keys without a terminal") {
  const Homework homework;
  const fs::path out = homework.folder.path() / "out";
  const Ended ended =
      run({{FLASH_STEPS_COURSE, "watch", "01.mean", "--root", homework.root().string()},
           {},
           out,
           "hnlq",
           60,
           0});
  CHECK(ended.exit_code == 0);
  const std::string text = read_file(out);
  CHECK(contains(text, "01.mean  (C++, 2 points)"));
  CHECK(contains(text, "1 of 3  One."));
  CHECK(contains(text, "01.twice-cuda  (CUDA, 1 point)"));
  CHECK(contains(text, "0 of 3 exercises"));
  CHECK_FALSE(contains(text, "\033["));
}

TEST_CASE("cpu: watch begins anew when a save comes before the verdict") {
  const Homework homework;
  const auto save = [&](const std::string& body) {
    write_file(homework.file(), replace_bodies("chapters/01_sum/sum.cpp",
                                               read_file(homework.file()), {{"01.sum", body}}));
  };
  const fs::path out = homework.folder.path() / "out";
  save("  for (volatile int i = 0;; i = i + 1) {}\n");
  Child watch({{FLASH_STEPS_COURSE, "watch", "01.sum", "--root", homework.root().string()},
               {},
               out,
               "",
               60,
               0});
  const double began = now_seconds();
  bool saved = false;
  while (!watch.ended() && now_seconds() < began + 50) {
    if (!saved && now_seconds() > began + 1) save(kRight.at("01.sum"));
    saved = saved || now_seconds() > began + 1;
    if (fs::exists(out) && contains(read_file(out), "01.sum: done")) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(contains(read_file(out), "01.sum: done"));
  CHECK_FALSE(contains(read_file(out), "timed out"));
}

// What `course verify` can say without building anything, of the real course.
TEST_CASE("cpu: the starter of all chapters has gaps and no solution") {
  for (const std::string& problem : verify_texts(load_project(kSource))) FAIL_CHECK(problem);
  CHECK(load_project(kSource).manifest.graded.size() > 0);
}

TEST_CASE("cpu: an instructor's commands") {
  const Homework homework;
  const std::string starter = homework.root().string(),
                    reference = (homework.folder.path() / "reference").string();
  const auto course = [&](const std::vector<std::string>& arguments) {
    return test::run_program(FLASH_STEPS_COURSE, arguments);
  };
  submit(homework, "anne", kRight);
  submit(homework, "bob", {});
  const std::string folder = (homework.folder.path() / "submissions").string(),
                    out = homework.folder.file("out.csv");
  const auto both = course(
      {"grade", folder, "--root", starter, "--csv", "--out", out, "--no-gpu", "--seed", "77"});
  CHECK(both.exit_code == 0);
  CHECK(read_file(out) ==
        "submission,points,most_points,01.sum,01.mean,01.twice-cuda,01.raw-cuda\n\"anne\",7,7,"
        "4,2,1,0\n\"bob\",0,7,0,0,0,0\n");
  CHECK(course({"grade", homework.folder.file("empty"), "--root", starter}).exit_code == 2);
  CHECK(course({"grade", folder, "--root", starter, "--csv", "--json"}).exit_code == 2);
  const std::string results = homework.folder.file("results.json");
  CHECK(course({"grade", reference + "/tests", "--root", starter, "--gradescope", "--out",
                results, "--no-gpu"})
            .exit_code == 0);
  CHECK(contains(read_file(results), "\"score\": 0"));

  const Project project = load_project(kSource);
  const std::string workflow = github_workflow(project, "owner/homework");
  CHECK(contains(workflow, "repository: owner/homework\n"));
  CHECK_THROWS_AS(github_workflow(project, "homework"), cli::UsageError);
  CHECK(course({"make-student", "--root", reference, "--out", starter}).exit_code == 2);
  const auto made = course({"make-student", "--root", reference, "--chapters", "1", "--out",
                            homework.folder.file("new")});
  CHECK(made.exit_code == 0);
  CHECK(fs::exists(homework.folder.path() / "new/.course/solutions.json"));
}

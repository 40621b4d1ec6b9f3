// course: a homework that generates, grades and guides itself. docs/teaching.md is about it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/cli/error.hpp"
#include "common/cli/options.hpp"
#include "common/cli/program.hpp"
#include "common/cli/value.hpp"
#include "common/course/commands.hpp"
#include "common/course/process.hpp"

namespace {

using namespace flash_steps;
using namespace flash_steps::course;

// What is on the command line, in the places that the commands take it from.
struct Line {
  CommonArguments common;
  std::vector<std::string> what;
  std::string id, chapters, out, chapter, service, repository;
  bool reduced = false;
  GradeArguments grade;
  bool good = true;  // false: something did not pass, exit code 1
};

void add_common(CLI::App& app, Line& line) {
  app.add_option("--root", line.common.root,
                 "the homework's folder (default: found from here)");
  app.add_option_function<std::string>(
         "--seed",
         [&](const std::string& text) { cli::parse_value("--seed", text, line.common.seed); },
         "seed of the data (default: a fresh one)")
      ->type_name("N");
  app.add_option_function<std::string>(
         "--jobs",
         [&](const std::string& text) {
           std::int64_t jobs = 0;
           cli::parse_value("--jobs", text, jobs, {1, 1024});
           line.common.jobs = static_cast<int>(jobs);
         },
         "tests at a time (default: the number of processors)")
      ->type_name("N");
  app.add_flag("--no-gpu", line.common.no_gpu, "leave the GPU alone");
}

CLI::App* add_command(CLI::App& app, Line& line, const std::string& name,
                      const std::string& help, const std::function<void()>& run) {
  CLI::App* command = app.add_subcommand(name, help);
  add_common(*command, line);
  command->callback(run);
  return command;
}

void add_student_commands(CLI::App& app, Line& line) {
  add_command(app, line, "next", "what to do now",
              [&] { command_next(line.common, line.chapter); })
      ->add_option("chapter", line.chapter,
                   "its number (default: the first with open exercises)");
  add_command(app, line, "list", "all exercises and how they stand",
              [&] { command_list(line.common); });
  add_command(app, line, "check", "build and test exercises", [&] {
    line.good = command_check(line.common, line.what);
  })->add_option("what", line.what, "ids or chapters (default: all)");
  add_command(app, line, "watch", "check at every save", [&] {
    command_watch(line.common, line.id);
  })->add_option("id", line.id, "the exercise (default: the next one)");
  add_command(app, line, "hint", "the next hint", [&] {
    command_hint(line.common, line.id);
  })->add_option("id", line.id, "the exercise (default: the next one)");
  add_command(app, line, "prepare", "compile all tests once, so that no check waits for them",
              [&] { command_prepare(line.common); });
  add_command(app, line, "reset", "begin an exercise anew; a backup is kept",
              [&] { command_reset(line.common, line.id); })
      ->add_option("id", line.id, "the exercise")
      ->required();
  add_command(app, line, "solution", "the reference solution of an exercise that passes",
              [&] { command_solution(line.common, line.id); })
      ->add_option("id", line.id, "the exercise")
      ->required();
}

void add_grade(CLI::App& app, Line& line) {
  CLI::App* grade = add_command(app, line, "grade", "grade a submission, or a folder of them",
                                [&] { command_grade(line.common, line.grade); });
  grade->add_option("directory", line.grade.directory, "the submission or the folder")
      ->required();
  std::vector<CLI::Option*> formats;
  for (const char* format : {"json", "junit", "csv", "gradescope"}) {
    CLI::Option* flag = grade->add_flag_callback(
        std::string("--") + format, [&line, format] { line.grade.format = format; },
        std::string("write ") + format + " instead of text");
    for (CLI::Option* other : formats) flag->excludes(other);
    formats.push_back(flag);
  }
  grade->add_option("--out", line.grade.out, "write to this file, again after each exercise");
}

void add_autograder(CLI::App& app, Line& line) {
  CLI::App* make =
      add_command(app, line, "make-autograder", "make what a grading service runs", [&] {
        command_make_autograder(line.common, line.service, line.chapters, line.repository,
                                line.out);
      });
  for (const char* service : {"gradescope", "github-actions"}) {
    make->add_flag_callback(
        std::string("--") + service, [&line, service] { line.service = service; },
        std::string("for ") + service);
  }
  make->add_option("--chapters", line.chapters, "as in 1-6 or 3,5 (default: all; Gradescope)");
  make->add_option("--repository", line.repository,
                   "OWNER/NAME of the starter (GitHub Actions)");
  make->add_option("--out", line.out, "the archive or workflow to write")->required();
}

void add_instructor_commands(CLI::App& app, Line& line) {
  CLI::App* student =
      add_command(app, line, "make-student", "make the starter of a homework",
                  [&] { command_make_student(line.common, line.chapters, line.out); });
  student->add_option("--chapters", line.chapters, "as in 1-6 or 3,5 (default: all)");
  student->add_option("--out", line.out, "a new folder")->required();
  add_grade(app, line);
  add_autograder(app, line);
  CLI::App* verify = add_command(app, line, "verify", "prove the kit itself", [&] {
    line.good = command_verify(line.common, line.chapters, line.what, line.reduced);
  });
  verify->add_option("--chapters", line.chapters, "to build and run (default: all)");
  verify->add_option("ids", line.what, "only these");
  verify->add_flag(
      "--reduced", line.reduced,
      "half of the chapters, in each one id by itself and one wrong answer to it, drawn "
      "by the seed");
  add_command(app, line, "learn", "find which tests belong to the ids of a chapter",
              [&] { command_learn(line.common, line.chapter); })
      ->add_option("chapter", line.chapter, "its number")
      ->required();
}

void run_command_line(const cli::Arguments& arguments, Line& line) {
  CLI::App app("A homework that generates, grades and guides itself.", "course");
  app.require_subcommand(1);
  add_student_commands(app, line);
  add_instructor_commands(app, line);
  const bool word = !arguments.empty() && arguments.front().rfind("-", 0) != 0;
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const bool known = std::any_of(
      commands.begin(), commands.end(),
      [&](const CLI::App* command) { return command->get_name() == arguments.front(); });
  if (word && !known) {
    throw cli::UsageError("there is no command '" + arguments.front() +
                          "'; course --help lists them");
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed.empty() ? std::vector<std::string>{"--help"} : reversed);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* asked = &app;
    for (const CLI::App* command : app.get_subcommands()) asked = command;
    throw cli::HelpRequested(asked->help());
  } catch (const CLI::ParseError& error) {
    throw cli::UsageError(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  catch_interrupts();
  Line line;
  const int exit_code = cli::run_main(
      argc, argv, [&](const cli::Arguments& arguments) { run_command_line(arguments, line); });
  return exit_code == 0 && !line.good ? 1 : exit_code;
}

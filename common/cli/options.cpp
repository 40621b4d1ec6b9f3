// CLI11 splits the command line, looks names up and lays out the help. What a value may be, and
// every sentence that a user reads about a wrong one, is decided here and in value.cpp. This is
// the only file that includes CLI11.
#include "common/cli/options.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/cli/error.hpp"

namespace flash_steps::cli {
namespace {

// CLI11's layout, with one blank line between the groups instead of two.
struct HelpFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return CLI::Formatter::make_usage(app, name) + "\n";
  }
  std::string make_group(std::string group, bool positional,
                         std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(group, positional, options).substr(1);
  }
};

[[noreturn]] void refuse_extra(const std::string& argument) {
  const bool is_option = argument.size() > 1 && argument[0] == '-' && argument != "--" &&
                         !(argument[1] >= '0' && argument[1] <= '9');
  if (is_option) {
    throw UsageError(fmt::format("unknown option {} (--help lists the options)",
                                 argument.substr(0, argument.find('='))));
  }
  throw UsageError(fmt::format(
      "unexpected argument '{}' (every input has an option, see --help)", argument));
}

}  // namespace

struct Options::Impl {
  struct Binding {
    CLI::Option* option;
    Store store;
  };
  // `those` is empty for options that are given all together or not at all.
  struct Relation {
    std::vector<std::string> these, those;
  };

  CLI::App app;
  std::string group = "Options", example;
  std::vector<Binding> bindings;
  std::vector<Relation> relations;
  bool any_given = false;

  Impl(const std::string& program, const std::string& summary) : app(summary, program) {
    app.set_help_flag();  // finish() adds it, as the last option
    app.allow_extras();   // they are worded in refuse_extra
    app.formatter(std::make_shared<HelpFormatter>());
  }

  void bind(CLI::Option* option, Store store) {
    option->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    bindings.push_back({option, std::move(store)});
  }

  // What every program has at the end of its help.
  void finish() {
    app.set_help_flag("-h,--help", "print this text")->group("Output");
    app.footer(
        "Without arguments: a short narrated demonstration.\n"
        "Exit codes: 0 done; 1 a cross-check, the device, memory or writing failed; 2 bad "
        "usage or input,\nor a directory --out that cannot be used." +
        (example.empty() ? "" : "\nExample: " + example));
  }

  bool given(const std::string& name) const { return app.count(name) > 0; }

  // The first of `names` that was given, or that was not; "" if there is none.
  std::string first(const std::vector<std::string>& names, bool is_given) const {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return given(name) == is_given;
    });
    return found != names.end() ? *found : "";
  }

  // What CLI11 would accept: `--q= next` for `--q next`, and `--json=true`.
  void check_equals_sign(const std::string& argument) const {
    const std::size_t equals = argument.find('=');
    if (!argument.starts_with("--") || equals == std::string::npos) return;
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return;
    if (option->get_items_expected_max() == 0) {
      throw UsageError(fmt::format("{} takes no value, found '{}'", name, value));
    }
    if (value.empty()) throw UsageError(fmt::format("{} needs a value, found ''", name));
  }

  void split(const Arguments& arguments) {
    for (const std::string& argument : arguments) check_equals_sign(argument);
    try {
      app.parse(Arguments(arguments.rbegin(), arguments.rend()));  // CLI11 wants them reversed
    } catch (const CLI::CallForHelp&) {
      throw HelpRequested(app.help());
    } catch (const CLI::ArgumentMismatch&) {
      // the last argument is an option that lacks its value
      throw UsageError(arguments.back() + " needs a value");
    }
    if (const auto extras = app.remaining(); !extras.empty()) refuse_extra(extras.front());
  }

  void check(const Relation& relation) const {
    const std::string present = first(relation.these, true);
    if (present.empty()) return;
    if (relation.those.empty()) {
      const std::string missing = first(relation.these, false);
      if (missing.empty()) return;
      throw UsageError(fmt::format("{} go together, and {} is missing",
                                   enumerate(relation.these, " and "), missing));
    }
    const std::string other = first(relation.those, true);
    if (other.empty()) return;
    throw UsageError(fmt::format("{} and {} cannot be combined", present, other));
  }
};

Options::Options(const std::string& program, const std::string& summary)
    : impl_(std::make_unique<Impl>(program, summary)) {}

Options::~Options() = default;

void Options::group(const std::string& title) { impl_->group = title; }

void Options::declare(const Declaration& declaration, Store store) {
  const auto& [name, placeholder, help, limits, default_value] = declaration;
  std::string notes = limits;  // "rows of a Q tile (>= 1; default 64)"
  if (!default_value.empty())
    notes += (notes.empty() ? "default " : "; default ") + default_value;
  CLI::Option* option = impl_->app.add_option(name);
  option->option_text(placeholder);
  option->description(notes.empty() ? help : fmt::format("{} ({})", help, notes));
  impl_->bind(option, [name = name, store = std::move(store)](const std::string& text) {
    if (text.empty() || text.starts_with("--")) {
      throw UsageError(fmt::format("{} needs a value, found '{}'", name, text));
    }
    store(text);
  });
}

void Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  CLI::Option* option = impl_->app.add_flag(name);
  option->description(help);
  impl_->bind(option, [&value](const std::string&) { value = true; });
}

void Options::all_or_none(const std::vector<std::string>& names) {
  impl_->relations.push_back({names, {}});
}

void Options::exclusive(const std::vector<std::string>& these,
                        const std::vector<std::string>& those) {
  impl_->relations.push_back({these, those});
}

void Options::example(const std::string& command_line) { impl_->example = command_line; }

void Options::parse(const Arguments& arguments) {
  impl_->finish();
  impl_->split(arguments);
  for (const auto& [option, store] : impl_->bindings) {
    if (option->count() > 1) {
      throw UsageError(fmt::format("{} is given more than once", option->get_name()));
    }
    if (option->count() == 1) store(option->results().front());
  }
  for (const auto& relation : impl_->relations) impl_->check(relation);
  impl_->any_given = !arguments.empty();
}

bool Options::given(const std::string& name) const { return impl_->given(name); }

bool Options::any_given() const { return impl_->any_given; }

std::string Options::help() const {
  impl_->finish();
  return impl_->app.help();
}

}  // namespace flash_steps::cli

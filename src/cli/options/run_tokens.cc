#include "cli/options/run_tokens.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/strings/str_format.h"
#include "cli/options/run_option_table.h"
#include "cli/options/suggest.h"

namespace keepstep::cli {
namespace {

// Stands for the empty value of `--option=`, because CLI11 would take the next word as the value.
constexpr const char* kEmpty = "\x01";

std::set<std::string> spellings(const RunOption& option) { return {option.spelled(), option.underscored()}; }

std::string cli11_names(const RunOption& option) {
  std::string names = option.short_name == 0 ? "" : absl::StrFormat("-%c,", option.short_name);
  for (const std::string& spelling : spellings(option)) {
    names += spelling + ",";
  }
  names.pop_back();
  return names;
}

std::vector<std::string> known_words() {
  std::vector<std::string> words = {"--help", "-h"};
  for (const RunOption& option : run_options_table()) {
    words.push_back(option.spelled());
    if (option.short_name != 0) {
      words.push_back(absl::StrFormat("-%c", option.short_name));
    }
  }
  return words;
}

std::string unknown_option(const std::string& word) {
  std::string name = word.substr(0, word.find('='));
  std::replace(name.begin() + std::min<ptrdiff_t>(2, std::ssize(name)), name.end(), '_', '-');
  const std::string meant = nearest(name, known_words());
  return absl::StrFormat("%s: no such option%s", word,
                         meant.empty() ? "; `keepstep run --help` lists them" : "; did you mean " + meant + "?");
}

// `--unknown 2 --known 3 train.py`: CLI11 takes the word after an unknown option for the script. If that word is not a
// file and more words follow, it is taken as the option's value: returns the option, and removes both from `args`, so
// that parsing them again lists the mistakes after them too.
std::optional<std::string> take_out_unknown(std::vector<std::string>& args, const std::vector<std::string>& rest) {
  const auto script = std::find_if(rest.begin(), rest.end(), [](const auto& word) { return !word.starts_with('-'); });
  if (script == rest.begin() || script == rest.end() || std::next(script) == rest.end()) {
    return std::nullopt;
  }
  const std::string& unknown = *std::prev(script);
  const std::vector<std::string> pair = {unknown, *script};
  const auto at = std::search(args.begin(), args.end(), pair.begin(), pair.end());
  std::error_code error;
  if (unknown == "--" || unknown.find('=') != std::string::npos || at == args.end() ||
      std::filesystem::exists(*script, error)) {
    return std::nullopt;
  }
  args.erase(at, at + 2);
  return unknown;
}

// Words that CLI11 left over: unknown options, then the script and everything after it.
void take_rest(const std::vector<std::string>& rest, RunTokens& tokens) {
  auto word = rest.begin();
  for (bool only_words = false; word != rest.end(); ++word) {
    if (!only_words && *word == "--") {
      only_words = true;
    } else if (!only_words && word->size() > 1 && word->front() == '-') {
      tokens.mistakes.push_back(unknown_option(*word));
      tokens.script_in_doubt |= word->find('=') == std::string::npos;
    } else {
      break;
    }
  }
  if (word == rest.end()) {
    return;
  }
  tokens.script = *word++;
  for (; word != rest.end(); ++word) {
    const bool was_empty = word->ends_with(std::string("=") + kEmpty);
    tokens.script_args.push_back(was_empty ? word->substr(0, word->size() - 1) : *word);
  }
}

void take_environment(const RunOption& option, const Environ& environ, RunTokens& tokens) {
  const std::string name = option.environment();
  const std::optional<std::string> value = environ(name);
  if (!value || value->empty()) {
    return;
  }
  if (!option.is_flag()) {
    tokens.values[option.name].push_back({*value, name});
  } else if (*value == "1") {
    tokens.values[option.name].push_back({"", name});
  } else if (*value != "0") {
    tokens.mistakes.push_back(
        absl::StrFormat("%s is '%s'; 1 turns %s on and 0 leaves it off", name, *value, option.spelled()));
  }
}

// One option of the command line: its values as given.
void take_given(const RunOption& option, const CLI::Option& given, const std::vector<std::string>& known,
                RunTokens& tokens) {
  for (const std::string& value : given.results()) {
    if (option.is_flag()) {
      if (value != "true") {
        tokens.mistakes.push_back(absl::StrFormat("%s=%s: %s takes no value; leave it out to turn it off",
                                                  option.spelled(), value, option.spelled()));
      }
      tokens.values[option.name].push_back({"", option.spelled()});
    } else if (value == kEmpty || std::find(known.begin(), known.end(), value) != known.end()) {
      tokens.mistakes.push_back(absl::StrFormat("%s needs a value (%s)%s", option.spelled(), option.value,
                                                value == kEmpty ? "" : absl::StrFormat(", and %s follows", value)));
    } else {
      tokens.values[option.name].push_back({value, option.spelled()});
    }
  }
}

void judge_support(RunTokens& tokens) {
  for (const RunOption& option : run_options_table()) {
    const auto given = tokens.last(option.name);
    if (!given || option.support == RunOption::Support::kFull) {
      continue;
    }
    if (option.support == RunOption::Support::kRefused) {
      tokens.mistakes.push_back(
          absl::StrFormat("%s is torchrun's and not in this version; %s", given->where, option.bounds));
    } else {
      tokens.warnings.push_back(absl::StrFormat("%s changes nothing: %s", given->where, option.bounds));
    }
  }
}

}  // namespace

Environ environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::optional<GivenValue> RunTokens::last(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second.back());
}

RunTokens tokenize_run(const std::vector<std::string>& args, const Environ& environ) {
  RunTokens tokens;
  CLI::App app;
  app.set_help_flag();
  app.prefix_command();
  const CLI::Option* help = app.add_flag("-h,--help");
  const CLI::Option* markdown = app.add_flag("--help-markdown,--help_markdown");
  std::map<std::string, CLI::Option*> options;
  std::set<std::string> empty_values;
  for (const RunOption& option : run_options_table()) {
    if (option.is_flag()) {
      options[option.name] = app.add_flag(cli11_names(option));
    } else {
      // One value per occurrence, any number of times; CLI11 does not interpret it.
      options[option.name] = app.add_option(cli11_names(option), [](const CLI::results_t&) { return true; });
      for (const std::string& spelling : spellings(option)) {
        empty_values.insert(spelling + "=");
      }
    }
    options[option.name]->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  std::vector<std::string> words(args.rbegin(), args.rend());  // in the order that CLI11 expects
  for (std::string& word : words) {
    if (empty_values.contains(word)) {
      word += kEmpty;
    }
  }
  try {
    app.parse(words);
  } catch (const CLI::ArgumentMismatch&) {
    // The last word is an option without its value; all others have been consumed.
    tokens.mistakes.push_back(absl::StrFormat("%s needs a value and nothing follows", args.back()));
  } catch (const CLI::ParseError& error) {
    tokens.mistakes.push_back(error.what());
  }
  std::vector<std::string> others = args;
  if (const auto unknown = take_out_unknown(others, app.remaining())) {
    RunTokens again = tokenize_run(others, environ);
    again.mistakes.insert(again.mistakes.begin(), unknown_option(*unknown));
    return again;
  }
  tokens.help = help->count() > 0;
  tokens.help_markdown = markdown->count() > 0;
  const std::vector<std::string> known = known_words();
  for (const RunOption& option : run_options_table()) {
    take_given(option, *options.at(option.name), known, tokens);
    if (option.pet && options.at(option.name)->count() == 0) {
      take_environment(option, environ, tokens);
    }
  }
  take_rest(app.remaining(), tokens);
  judge_support(tokens);
  return tokens;
}

}  // namespace keepstep::cli

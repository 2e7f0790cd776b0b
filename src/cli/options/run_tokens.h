// Splits the words after `keepstep run` into options, script and the script's own arguments. Knows which options exist
// and which have a value, but not what they mean. Uses CLI11.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace keepstep::cli {

// The value of an environment variable, if it is set.
using Environ = std::function<std::optional<std::string>(const std::string& name)>;
Environ environment();  // this process's

struct GivenValue {
  std::string value;
  std::string where;  // "--nproc-per-node" or "PET_NPROC_PER_NODE": for messages
};

struct RunTokens {
  std::map<std::string, std::vector<GivenValue>> values;  // by option name; a flag that is set has one empty value
  std::optional<std::string> script;
  std::vector<std::string> script_args;
  bool help = false;
  bool help_markdown = false;
  bool script_in_doubt = false;  // the word taken for the script could be the value of an unknown option
  std::vector<std::string> mistakes;
  std::vector<std::string> warnings;

  bool has(const std::string& name) const { return values.contains(name); }
  // The last value given, which torchrun uses too.
  std::optional<GivenValue> last(const std::string& name) const;
};

RunTokens tokenize_run(const std::vector<std::string>& args, const Environ& environ);

}  // namespace keepstep::cli

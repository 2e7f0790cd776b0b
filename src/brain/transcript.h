// Golden transcripts: a text file with events in and effects out, made to be read in review. Test code only.
//
// A line that starts with '#' is a comment, an empty line separates, an indented line is expected output, and every
// other line is input. The test runs the inputs, writes the outputs below them and compares the result with the file.
// KEEPSTEP_UPDATE_TRANSCRIPTS=1 rewrites the files instead.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain::transcript {

// "ready worker=0..2 state=clean@117 because=\"two words\"": a verb and its arguments.
struct Line {
  std::string verb;
  std::map<std::string, std::string> arguments;

  std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto found = arguments.find(key);
    return found == arguments.end() ? otherwise : found->second;
  }
  uint64_t number(const std::string& key, uint64_t otherwise = 0) const {
    const auto found = arguments.find(key);
    return found == arguments.end() ? otherwise : std::stoull(found->second);
  }
  bool has(const std::string& key) const { return arguments.contains(key); }
};

inline Line parse(const std::string& text) {
  Line line;
  std::istringstream in(text);
  in >> line.verb;
  std::string word;
  while (in >> std::ws && std::getline(in, word, '=')) {
    std::string value;
    if (in.peek() == '"') {
      in.get();
      std::getline(in, value, '"');
    } else {
      in >> value;
    }
    line.arguments[word] = value;
  }
  return line;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

// "0..2,5" -> 0 1 2 5
inline std::vector<uint32_t> numbers(const std::string& text) {
  std::vector<uint32_t> values;
  for (const std::string& part : split(text, ',')) {
    const size_t dots = part.find("..");
    const auto first = static_cast<uint32_t>(std::stoul(part));
    const auto last = dots == std::string::npos ? first : static_cast<uint32_t>(std::stoul(part.substr(dots + 2)));
    for (uint32_t value = first; value <= last; ++value) {
      values.push_back(value);
    }
  }
  return values;
}

// "clean@117"; the version is 0 if there is none
inline StateWord state_word(const std::string& text) {
  const std::vector<std::string> parts = split(text, '@');
  for (const StateKind kind : {StateKind::kEmpty, StateKind::kHydrating, StateKind::kClean, StateKind::kUpdating}) {
    if (parts[0] == name(kind)) {
      return {kind, parts.size() > 1 ? std::stoull(parts[1]) : 0};
    }
  }
  throw std::runtime_error("no such state: " + text);
}

using Run = std::function<std::vector<std::string>(const Line&)>;

inline std::string rerun(const std::string& recorded, const Run& run) {
  std::istringstream in(recorded);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') {
      out += line + "\n";
    } else if (line[0] != ' ') {
      out += line + "\n";
      for (const std::string& effect : run(parse(line))) {
        out += "    " + effect + "\n";
      }
    }
  }
  return out;
}

// The lines around the first difference, '-' expected, '+' got.
inline std::string difference(const std::string& expected, const std::string& got) {
  const std::vector<std::string> left = split(expected, '\n');
  const std::vector<std::string> right = split(got, '\n');
  size_t same = 0;
  while (same < left.size() && same < right.size() && left[same] == right[same]) {
    ++same;
  }
  std::string text = "first difference in line " + std::to_string(same + 1) + "\n";
  for (size_t line = same < 6 ? 0 : same - 6; line < same; ++line) {
    text += "  " + left[line] + "\n";
  }
  for (size_t line = same; line < left.size() && line < same + 8; ++line) {
    text += "- " + left[line] + "\n";
  }
  for (size_t line = same; line < right.size() && line < same + 8; ++line) {
    text += "+ " + right[line] + "\n";
  }
  return text;
}

// The transcripts below `folder` of src/brain, such as "membership/testdata": paths below src/brain, without suffix.
inline std::vector<std::string> below(const std::string& folder) {
  const std::filesystem::path brain = KEEPSTEP_SOURCES;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(brain / folder)) {
    if (entry.path().extension() == ".txt") {
      names.push_back(std::filesystem::relative(entry.path(), brain).replace_extension().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// GoogleTest's name for the transcript at `path`: only letters, digits and '_'.
inline std::string test_name(std::string path) {
  path.erase(0, path.find("testdata/") + std::string("testdata/").size());
  std::replace(path.begin(), path.end(), '/', '_');
  return path;
}

// Empty if the transcript matches the recorded one; otherwise the difference.
inline std::string check(const std::string& name, const Run& run) {
  const std::string path = std::string(KEEPSTEP_SOURCES) + "/" + name + ".txt";
  std::ifstream in(path);
  std::stringstream recorded;
  recorded << in.rdbuf();
  const std::string got = rerun(recorded.str(), run);
  if (std::getenv("KEEPSTEP_UPDATE_TRANSCRIPTS") != nullptr) {
    std::ofstream(path) << got;
    return "";
  }
  if (recorded.str() == got) {
    return "";
  }
  return path + ": " + difference(recorded.str(), got) + "if the new text is right: KEEPSTEP_UPDATE_TRANSCRIPTS=1\n";
}

}  // namespace keepstep::brain::transcript

// Printing of text that others wrote: users of a job, other machines, storage.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace keepstep::cli {

// Prints the text as terminal_text() renders it.
void print_text(std::FILE* to, std::string_view text);
// The same, with a newline.
void print_line(std::FILE* to, std::string_view line);
// Prints a line of ASCII to standard output: characters that a terminal would act on are escaped as in JSON.
void print_json(const nlohmann::json& value);

}  // namespace keepstep::cli

// How commands print what others wrote: users of a job, other machines, storage.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace keepstep::cli {

// As terminal_text() shows it.
void print_text(std::FILE* to, std::string_view text);
// The same, and the end of the line.
void print_line(std::FILE* to, std::string_view line);
// A line of ASCII on standard output: what a terminal would obey is escaped as JSON does.
void print_json(const nlohmann::json& value);

}  // namespace keepstep::cli

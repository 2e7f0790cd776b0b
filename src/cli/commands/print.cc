#include "cli/commands/print.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/terminal_text.h"

namespace keepstep::cli {

void print_text(std::FILE* to, std::string_view text) { std::fputs(terminal_text(text).c_str(), to); }

void print_line(std::FILE* to, std::string_view line) { print_text(to, std::string(line) + "\n"); }

void print_json(const nlohmann::json& value) {
  std::puts(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace keepstep::cli

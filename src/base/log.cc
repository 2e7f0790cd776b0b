#include "base/log.h"

#include <spdlog/cfg/helpers.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/terminal_text.h"

namespace keepstep {
namespace {

class Shown : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = terminal_text(std::string_view(message.payload.data(), message.payload.size()));
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Shown>(); }
};

}  // namespace

void init_log(const std::string& who) {
  auto logger = std::make_shared<spdlog::logger>("keepstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Shown>('*').set_pattern("[keepstep " + who + "] %l: %*");
  logger->set_formatter(std::move(formatter));
  const char* level = std::getenv("KEEPSTEP_LOG");
  logger->set_level(spdlog::level::from_str(level != nullptr ? level : "warn"));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace keepstep

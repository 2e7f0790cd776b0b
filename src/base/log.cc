#include "base/log.h"

#include <spdlog/cfg/helpers.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>

namespace keepstep {

void init_log(const std::string& who) {
  auto logger = std::make_shared<spdlog::logger>("keepstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[keepstep " + who + "] %l: %v");
  const char* level = std::getenv("KEEPSTEP_LOG");
  logger->set_level(spdlog::level::from_str(level != nullptr ? level : "warn"));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace keepstep

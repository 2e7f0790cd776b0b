// The one logger: spdlog, to standard error, one line a message, level from KEEPSTEP_LOG (default "warn").
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace keepstep {

// Once per process; `who` ("agent", "rank 2") leads every line. Messages are shown as terminal_text() does.
void init_log(const std::string& who);

}  // namespace keepstep

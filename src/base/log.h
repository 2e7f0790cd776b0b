// The only logger: spdlog, to standard error, one line per message, level from KEEPSTEP_LOG (default "warn").
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace keepstep {

// Call once per process. `who` ("agent", "rank 2") starts every line. Messages are escaped like terminal_text() does.
void init_log(const std::string& who);

}  // namespace keepstep

// The version of the command; CMakeLists.txt and pyproject.toml say the same (tests/test_layout.py compares).
#pragma once

namespace keepstep::cli {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace keepstep::cli

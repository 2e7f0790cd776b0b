// The version of the command; CMakeLists.txt and pyproject.toml have the same (checked by tests/test_layout.py).
#pragma once

namespace keepstep::cli {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace keepstep::cli

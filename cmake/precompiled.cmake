# Headers that nearly every file includes, parsed once instead of some 550 times: about a third of the compiler's time.
# No file may rely on it (CMakeLists.txt switches it off for the sanitizers). Ours do not belong here: each touch would
# compile everything anew.
set(engine_headers
    <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <filesystem> <functional> <map> <memory>
    <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>)
set(test_headers ${engine_headers} <random> <gmock/gmock.h> <gtest/gtest.h>)
# What is tested is optimized as it ships; the tests themselves only need to build fast.
set(KEEPSTEP_TEST_OPTIONS -O1)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fpch-preprocess)  # for ccache
endif()

# They are compiled as a library, and as a program, without definitions of anybody's: GCC refuses them where one is missing.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "int main() {}\n")
add_library(keepstep_precompiled_engine OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
target_precompile_headers(keepstep_precompiled_engine PRIVATE ${engine_headers})
if(KEEPSTEP_TESTS)
  add_executable(keepstep_precompiled_test EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_compile_options(keepstep_precompiled_test PRIVATE ${KEEPSTEP_TEST_OPTIONS})
  target_link_libraries(keepstep_precompiled_test PRIVATE GTest::gtest_main GTest::gmock)  # for their definitions
  target_precompile_headers(keepstep_precompiled_test PRIVATE ${test_headers})
endif()

# What <linux/sched/types.h> declares, <sched.h> does too.
set_source_files_properties(src/base/short_turns.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
# RE2's package asks for -pthread, and with it for a definition that the headers were compiled without. glibc needs neither.
if(TARGET PkgConfig::RE2)
  set_property(TARGET PkgConfig::RE2 PROPERTY INTERFACE_COMPILE_OPTIONS "")
endif()

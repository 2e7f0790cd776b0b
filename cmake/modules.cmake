# keepstep_module(NAME deps...): a static library of src/NAME/*.cc and src/NAME/*/*.cc and, where there are *_test.cc
# beside the code, a GoogleTest program keepstep_NAME_test that ctest runs.
if(KEEPSTEP_TESTS)
  enable_testing()
  include(GoogleTest)
endif()

function(keepstep_module name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc ${CMAKE_SOURCE_DIR}/src/${name}/*/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|/main|/bench_.*)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(keepstep_${name} STATIC ${sources})
    target_precompile_headers(keepstep_${name} REUSE_FROM keepstep_precompiled_engine)
    set(scope PUBLIC)
  else()
    add_library(keepstep_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(keepstep_${name} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(keepstep_${name} ${scope} ${ARGN})
  keepstep_tests(${name} ${tests})
endfunction()

# keepstep_tests(NAME sources...): keepstep_NAME_test, of these sources and the library keepstep_NAME.
function(keepstep_tests name)
  if(KEEPSTEP_TESTS AND ARGN)
    add_executable(keepstep_${name}_test ${ARGN})
    target_precompile_headers(keepstep_${name}_test REUSE_FROM keepstep_precompiled_test)
    target_link_libraries(keepstep_${name}_test PRIVATE keepstep_${name} GTest::gtest_main GTest::gmock)
    target_compile_options(keepstep_${name}_test PRIVATE ${KEEPSTEP_TEST_OPTIONS})
    target_compile_definitions(keepstep_${name}_test PRIVATE
      KEEPSTEP_SOURCES="${CMAKE_SOURCE_DIR}/src/${name}")
    gtest_discover_tests(keepstep_${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
  endif()
endfunction()

# Here GCC 12 warns of what does not happen: at short strings that grow, and at optionals that are empty.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set_source_files_properties(
    src/agent/control/coordinator_link_test.cc src/agent/nodes/joining_test.cc src/agent/watch/log_watch_test.cc
    src/base/token.cc src/checkpoint/dcp/metadata.cc src/checkpoint/dcp/pickle_test.cc
    src/cli/commands/rendezvous_bench.cc src/net/hub.cc src/net/shared_key.cc
    PROPERTIES COMPILE_OPTIONS
    "-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-restrict;-Wno-maybe-uninitialized")
endif()

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
    target_link_libraries(keepstep_${name}_test PRIVATE keepstep_${name} GTest::gtest_main GTest::gmock)
    # What is tested is optimized as it ships; the tests themselves only need to build fast.
    target_compile_options(keepstep_${name}_test PRIVATE -O1)
    target_compile_definitions(keepstep_${name}_test PRIVATE
      KEEPSTEP_SOURCES="${CMAKE_SOURCE_DIR}/src/${name}")
    gtest_discover_tests(keepstep_${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
  endif()
endfunction()

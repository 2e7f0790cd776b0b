# The engine for Python, bound with nanobind.
#
# Where scikit-build-core asks for the stable ABI (pyproject.toml), one extension serves Python 3.12 and all newer ones.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

# keepstep_extension(NAME LIBRARY sources...): keepstep.NAME over a library of the engine.
function(keepstep_extension name library)
  nanobind_add_module(${name} STABLE_ABI NB_STATIC LTO ${ARGN})
  target_link_libraries(${name} PRIVATE ${library})
  # It shows nothing but what Python calls: torch, Python's ssl and others have copies of the same libraries.
  set(map ${CMAKE_SOURCE_DIR}/cmake/extension.map)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${map})
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${map})
  if(NOT SKBUILD)  # beside the package's sources, where Python finds it from a clone without an install
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/python/keepstep)
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION keepstep)
endfunction()

# The worker engine inside a rank. It links no protobuf.
file(GLOB bindings CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/bindings/*.cc)
list(FILTER bindings EXCLUDE REGEX "/checkpoint_module\\.cc$")
keepstep_extension(_engine keepstep_rank ${bindings})

# Stores and checkpoints. Not in _engine: what talks to S3 is loaded by those who save and load.
keepstep_extension(_checkpoint keepstep_checkpoint ${CMAKE_SOURCE_DIR}/src/bindings/checkpoint_module.cc)

# keepstep._engine: the worker engine inside a rank, bound with nanobind. It links no protobuf.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)
file(GLOB bindings CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/bindings/*.cc)
list(FILTER bindings EXCLUDE REGEX "/checkpoint_module\\.cc$")
nanobind_add_module(_engine NB_STATIC LTO ${bindings})
target_link_libraries(_engine PRIVATE keepstep_rank)
# Nothing of ours or of the libraries below is visible to torch's own copies of them.
target_link_options(_engine PRIVATE -Wl,--exclude-libs,ALL)
# Beside the package's sources, where Python finds it from a clone without an install.
set_target_properties(_engine PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/python/keepstep)
install(TARGETS _engine LIBRARY DESTINATION keepstep)

# keepstep._checkpoint: stores and checkpoints. Not in _engine: what talks to S3 is loaded by those who save and load.
nanobind_add_module(_checkpoint NB_STATIC LTO ${CMAKE_SOURCE_DIR}/src/bindings/checkpoint_module.cc)
target_link_libraries(_checkpoint PRIVATE keepstep_checkpoint)
target_link_options(_checkpoint PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(_checkpoint PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/python/keepstep)
install(TARGETS _checkpoint LIBRARY DESTINATION keepstep)

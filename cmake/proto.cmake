# Messages between agents and coordinators: protobuf code made from src/proto/*.proto into the build folder.
file(GLOB protos CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/proto/*.proto)
set(generated)
foreach(proto ${protos})
  get_filename_component(stem ${proto} NAME_WE)
  set(out ${CMAKE_BINARY_DIR}/generated/proto/${stem})
  add_custom_command(
    OUTPUT ${out}.pb.cc ${out}.pb.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/generated/proto
    COMMAND protobuf::protoc -I ${CMAKE_SOURCE_DIR}/src --cpp_out=${CMAKE_BINARY_DIR}/generated ${proto}
    DEPENDS ${proto})
  list(APPEND generated ${out}.pb.cc)
endforeach()
file(GLOB proto_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/proto/*.cc)
set(proto_tests ${proto_sources})
list(FILTER proto_sources EXCLUDE REGEX "_test\\.cc$")
add_library(keepstep_proto STATIC ${generated} ${proto_sources})
target_precompile_headers(keepstep_proto REUSE_FROM keepstep_precompiled_engine)
target_include_directories(keepstep_proto PUBLIC ${CMAKE_BINARY_DIR}/generated ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(keepstep_proto PUBLIC keepstep_base keepstep_brain keepstep_net protobuf::libprotobuf)
list(FILTER proto_tests INCLUDE REGEX "_test\\.cc$")
keepstep_tests(proto ${proto_tests})

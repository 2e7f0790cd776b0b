# For wheels: what is linked runs wherever the C library does, beside any other copy of the same libraries.
#
# Every shared library that a package names is replaced by its archive: that of KEEPSTEP_STATIC, else the one beside it.
function(keepstep_archive_of library result)
  if(NOT library MATCHES "^/.*\\.so[.0-9]*$")
    set(${result} "${library}" PARENT_SCOPE)
    return()
  endif()
  string(REGEX REPLACE "\\.so[.0-9]*$" ".a" beside "${library}")
  get_filename_component(name "${beside}" NAME)
  foreach(archive ${KEEPSTEP_STATIC}/${name} ${beside})
    if(EXISTS ${archive})
      set(${result} ${archive} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  # Packages name more libraries than we link; the linker says which is missing.
  set(${result} ${beside} PARENT_SCOPE)
endfunction()

get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(target ${imported})
  foreach(property INTERFACE_LINK_LIBRARIES IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE
          IMPORTED_LOCATION_RELWITHDEBINFO)
    get_target_property(libraries ${target} ${property})
    if(libraries)
      set(archives)
      foreach(library ${libraries})
        keepstep_archive_of("${library}" archive)
        list(APPEND archives "${archive}")
      endforeach()
      set_target_properties(${target} PROPERTIES ${property} "${archives}")
    endif()
  endforeach()
endforeach()
set_property(TARGET CURL::libcurl APPEND PROPERTY INTERFACE_LINK_LIBRARIES OpenSSL::SSL)

# libgcc_s stays shared: it has the unwinder, of which a process should have one, and is wherever glibc is. What nobody
# calls is dropped: one such part of libstdc++ needs a newer C library than all else.
add_link_options(-static-libstdc++ -Wl,--gc-sections)

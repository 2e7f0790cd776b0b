# A wheel contains the libraries that it links, so it brings their notices: those of Debian's packages, and nanobind's.
foreach(package ${system_packages})
  if(package MATCHES "-dev$")
    install(FILES /usr/share/doc/${package}/copyright DESTINATION ${SKBUILD_METADATA_DIR}/licenses
            RENAME ${package}.txt)
  endif()
endforeach()
file(GLOB notice ${NB_DIR}/../nanobind-*.dist-info/licenses/LICENSE)
install(FILES ${notice} DESTINATION ${SKBUILD_METADATA_DIR}/licenses RENAME nanobind.txt)

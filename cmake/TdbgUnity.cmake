# Compiles the files of a folder as one: most of what a file costs the compiler is
# its headers.
#
#   TDBG_UNITY_BUILD=ON   a folder of `cpp` is one translation unit (default)
#                    OFF  each file is, for work on one of them, and for proof that
#                         each includes what it uses
#
# Two files of a folder must not give the same name to different things, in unnamed
# namespaces either.  Apart stay files with flags of their own (CMake sees to that),
# and portable*.cc of the reducers, which include what their AVX2 and AVX-512 siblings
# do, as another implementation.

include_guard(GLOBAL)

option(TDBG_UNITY_BUILD "Compile each folder of cpp as one file" ON)
if(TDBG_UNITY_BUILD)
  # pybind11 would let the linker optimize: there is little left to inline.
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
endif()

# `folders` stand below `cpp`; `sources` of `target` that lie in one are united.
function(tdbg_unite target folders)
  set_target_properties(
    ${target} PROPERTIES UNITY_BUILD "${TDBG_UNITY_BUILD}" UNITY_BUILD_MODE GROUP)
  foreach(folder IN LISTS folders)
    file(GLOB sources "${PROJECT_SOURCE_DIR}/cpp/${folder}/*.cc")
    list(FILTER sources EXCLUDE REGEX "/portable[^/]*$")
    string(REPLACE "/" "_" unit "${folder}")
    set_property(
      SOURCE ${sources} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP "${unit}")
  endforeach()
endfunction()

# tdbg::zstd: a static zstd, so that the module needs nothing at run time.
#
# Looked for in this order:
#   1. -DTDBG_ZSTD_ARCHIVE=/path/to/archive.a, where somebody said so;
#   2. a static system zstd (libzstd-dev), if it can go into a shared object;
#   3. the static archive inside the `blosc2` wheel, a build requirement in
#      pyproject.toml, which comes from the package index like everything else.
# The wheel has the code but no zstd.h; cpp/format/zstd_api.h declares what is
# used, and is used with every archive, so that there is one thing to test.

include_guard(GLOBAL)
include(CheckCXXSourceCompiles)

set(TDBG_ZSTD_ARCHIVE "" CACHE FILEPATH
    "A static library that contains zstd; empty: look for one")

# Whether `archive` contains zstd as position-independent code.
function(tdbg_zstd_is_usable archive result)
  set(CMAKE_REQUIRED_QUIET ON)
  set(CMAKE_REQUIRED_FLAGS "-fPIC")
  set(CMAKE_REQUIRED_LINK_OPTIONS -shared -Wl,-z,defs)
  set(CMAKE_REQUIRED_LIBRARIES "${archive}" -lpthread -lm)
  unset(TDBG_ZSTD_USABLE CACHE)
  check_cxx_source_compiles("
    extern \"C\" unsigned ZSTD_versionNumber(void);
    extern \"C\" void* ZSTD_createCCtx(void);
    extern \"C\" unsigned long ZSTD_decompress(void*, unsigned long,
                                               const void*, unsigned long);
    unsigned probe();
    unsigned probe() {
      char b[1];
      return ZSTD_versionNumber() + (ZSTD_createCCtx() != nullptr) +
             static_cast<unsigned>(ZSTD_decompress(b, 1, b, 1));
    }
    #ifndef __PIC__
    #error position-independent code is needed
    #endif" TDBG_ZSTD_USABLE)
  set(${result} ${TDBG_ZSTD_USABLE} PARENT_SCOPE)
  unset(TDBG_ZSTD_USABLE CACHE)
endfunction()

# The archive inside the blosc2 wheel of the Python that runs this build.
function(tdbg_zstd_in_blosc2 result)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  # find_spec, because the package need not be imported to be found.
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.util as u; print(u.find_spec('blosc2').submodule_search_locations[0])"
    OUTPUT_VARIABLE package
    OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed
    ERROR_QUIET)
  set(${result} "" PARENT_SCOPE)
  if(NOT failed)
    foreach(folder IN ITEMS lib lib64)
      if(EXISTS "${package}/${folder}/libblosc2.a")
        set(${result} "${package}/${folder}/libblosc2.a" PARENT_SCOPE)
      endif()
    endforeach()
  endif()
endfunction()

set(archive "${TDBG_ZSTD_ARCHIVE}")
if(NOT archive)
  # Not cached: build environments of pip are temporary, their paths too.
  find_library(system_zstd NAMES libzstd.a NO_CACHE)
  if(system_zstd)
    tdbg_zstd_is_usable("${system_zstd}" usable)
    if(usable)
      set(archive "${system_zstd}")
    endif()
  endif()
endif()
if(NOT archive)
  tdbg_zstd_in_blosc2(archive)
  if(archive)
    tdbg_zstd_is_usable("${archive}" usable)
  endif()
  if(NOT archive OR NOT usable)
    message(FATAL_ERROR
      "tdbg needs zstd as a static library. Install the Python package "
      "blosc2==4.14.1 for ${Python_EXECUTABLE}, or a static system zstd "
      "(libzstd-dev), or set -DTDBG_ZSTD_ARCHIVE=/path/to/libzstd.a")
  endif()
endif()
message(STATUS "zstd: ${archive}")

add_library(tdbg_zstd INTERFACE)
add_library(tdbg::zstd ALIAS tdbg_zstd)
target_link_libraries(tdbg_zstd INTERFACE "${archive}")

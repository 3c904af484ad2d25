# Language level, warnings and sanitizers, for everything that tdbg compiles.
#
# Flags that must agree over all files (visibility, sanitizers) are set for the
# whole directory tree; warnings are carried by `tdbg::compile_options`, so that
# they never reach code that is not ours.

include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(tdbg_compile_options INTERFACE)
add_library(tdbg::compile_options ALIAS tdbg_compile_options)
target_compile_options(
  tdbg_compile_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # The mutex wrapper carries the annotations; only clang can check them.
  target_compile_options(tdbg_compile_options INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: false alarms from std::string's operator+.
  target_compile_options(tdbg_compile_options INTERFACE -Wno-restrict)
endif()
if(TDBG_WERROR)
  target_compile_options(tdbg_compile_options INTERFACE -Werror)
endif()

if(TDBG_SANITIZE STREQUAL "address")
  set(sanitizers address,undefined)
elseif(TDBG_SANITIZE STREQUAL "thread")
  set(sanitizers thread)
elseif(TDBG_SANITIZE)
  message(FATAL_ERROR
    "TDBG_SANITIZE must be address, thread or empty, not '${TDBG_SANITIZE}'")
endif()
if(TDBG_SANITIZE)
  add_compile_options(
    -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()
if(TDBG_FUZZ)
  add_compile_options(-fsanitize-coverage=trace-pc,trace-cmp)
endif()

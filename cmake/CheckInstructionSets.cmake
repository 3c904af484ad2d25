# Fails when an object of ARCHIVE that was compiled for AVX2 or AVX-512 defines a
# weak function, such as an inline function of a header that was not inlined.  The
# linker keeps one copy of such a function for the whole program: were it this one,
# a processor without the instruction set would meet it anywhere.
#
#   cmake -DARCHIVE=libtdbg_core.a -DNM=nm -P CheckInstructionSets.cmake

cmake_minimum_required(VERSION 3.22)

execute_process(
  COMMAND "${NM}" --demangle --defined-only --print-file-name "${ARCHIVE}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]*:avx[^\n]* [TtW] [^\n]*" functions "${symbols}")
string(REGEX MATCHALL "[^\n]*:avx[^\n]* W [^\n]*" shared "${symbols}")
list(LENGTH functions n_functions)
if(shared)
  list(JOIN shared "\n" lines)
  message(FATAL_ERROR "shared with files of the baseline:\n${lines}")
endif()
message(STATUS "${n_functions} functions for special instruction sets, none shared")

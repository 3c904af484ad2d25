# Fails when nvcc or ptxas warned of something, when ptxas reported that a kernel
# keeps registers in memory, that is, spills or has a stack, or when it reported
# less than all kernels.
#
#   cmake -DREPORT=ptxas.txt -DARCHITECTURES=2 -P CheckPtxas.cmake

cmake_minimum_required(VERSION 3.22)

file(READ "${REPORT}" said)
string(REGEX MATCHALL "Compiling entry function '[a-z_]+' for 'sm_[0-9]+'" entries
             "${said}")
string(REGEX MATCHALL
             "[0-9]+ bytes stack frame, [0-9]+ bytes spill stores, [0-9]+ bytes spill loads"
             lines "${said}")
list(LENGTH entries n_entries)
list(LENGTH lines n_lines)
math(EXPR expected "4 * ${ARCHITECTURES}")  # Four kernels.
if(NOT n_entries EQUAL expected OR NOT n_lines EQUAL expected)
  message(FATAL_ERROR "${n_entries} kernels were compiled:\n${said}")
endif()
if(said MATCHES "[Ww]arning")
  message(FATAL_ERROR "${said}")
endif()
foreach(line IN LISTS lines)
  if(NOT line MATCHES
     "^0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads$")
    message(FATAL_ERROR "${line}:\n${said}")
  endif()
endforeach()
message(STATUS "${n_entries} kernels, no spills")

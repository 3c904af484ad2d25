# Compiles the kernels as the driver will on GPUs that come after those that the
# build has machine code for: the same PTX, by ptxas.  Fails as CheckPtxas.cmake.
#
#   cmake -DFOLDER=build/ptx -P cmake/CheckPtx.cmake

cmake_minimum_required(VERSION 3.22)

set(PROJECT_BINARY_DIR "${FOLDER}")
set(CMAKE_CXX_COMPILER c++)
set(ENV{TDBG_CUDA} ON) # What is asked for, whatever builds are given.
include("${CMAKE_CURRENT_LIST_DIR}/TdbgCuda.cmake")
tdbg_find_nvcc(nvcc version reason)
if(NOT nvcc)
  message(FATAL_ERROR "${reason}")
endif()

execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE known)
set(targets "")
set(ARCHITECTURES 0)
foreach(code IN ITEMS sm_90 sm_100 sm_120)
  if(known MATCHES "${code}\n")
    list(APPEND targets -gencode "arch=compute_90,code=${code}")
    math(EXPR ARCHITECTURES "${ARCHITECTURES} + 1")
  endif()
endforeach()
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(REPORT "${FOLDER}/ptxas.txt")
execute_process(
  COMMAND
    "${nvcc}" -fatbin -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" ${targets}
    --threads 2 -Xptxas -v -Werror all-warnings "-I${root}/cpp" -o
    "${FOLDER}/kernels.fatbin" "${root}/cpp/reducers/cuda/kernels.cu"
  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(failed)
  message(FATAL_ERROR "${said}")
endif()
file(WRITE "${REPORT}" "${said}")
string(REGEX MATCHALL "'[a-z_]+' for 'sm_[0-9]+'|Used [0-9]+ registers" lines
             "${said}")
foreach(line IN LISTS lines)
  message(STATUS "${line}")
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/CheckPtxas.cmake")

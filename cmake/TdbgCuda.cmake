# The CUDA kernels as one file for several architectures, by nvcc.
#
#   TDBG_CUDA=OFF   without (default: nvcc takes as long as the rest of a build)
#             ON    with kernels, by an nvcc of CUDA 12 or later, or else fail
#             AUTO  with kernels if there is one
#
# An environment variable of that name is the default, for pip.
#
# CMake's own CUDA language is not used: it would look for a working CUDA toolkit
# and link its runtime.  The file goes into the module as it is (.incbin), and the
# driver reads it at run time; nothing of CUDA is linked.

include_guard(GLOBAL)

set(default OFF)
if(DEFINED ENV{TDBG_CUDA})
  set(default "$ENV{TDBG_CUDA}")
endif()
set(TDBG_CUDA "${default}" CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set_property(CACHE TDBG_CUDA PROPERTY STRINGS AUTO ON OFF)

# Machine code for A100 and its relatives and for H100 and H200; PTX, which the
# driver compiles, for what comes after them.
set(TDBG_CUDA_TARGETS
    -gencode arch=compute_80,code=sm_80
    -gencode arch=compute_90,code=sm_90
    -gencode arch=compute_90,code=compute_90)

# Whether `program` compiles for the newest of the targets with our compiler of
# host code: each nvcc takes some versions of those only.  Asked once.
function(tdbg_probe_nvcc program works)
  set(pair "${program} ${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_VERSION}")
  if(NOT TDBG_NVCC_THAT_WORKS STREQUAL pair)
    set(probe "${PROJECT_BINARY_DIR}/cuda/probe")
    file(WRITE "${probe}.cu" "__global__ void Probe() {}\n")
    execute_process(
      COMMAND "${program}" -fatbin -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}"
              -gencode arch=compute_90,code=sm_90 -o "${probe}.fatbin" "${probe}.cu"
      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
      set(${works} OFF PARENT_SCOPE)
      return()
    endif()
    set(TDBG_NVCC_THAT_WORKS "${pair}" CACHE INTERNAL "nvcc, host compiler")
  endif()
  set(${works} ON PARENT_SCOPE)
endfunction()

# Sets `nvcc` to the compiler and `version` to its version, or `nvcc` to nothing
# and `reason` to why.
function(tdbg_find_nvcc nvcc version reason)
  set(${nvcc} "" PARENT_SCOPE)
  if(TDBG_CUDA STREQUAL "OFF")
    set(${reason} "TDBG_CUDA=OFF" PARENT_SCOPE)
    return()
  endif()
  # Not cached: build environments of pip are temporary.
  find_program(program nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
  if(NOT program)
    set(${reason} "no nvcc was found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${program}" --version OUTPUT_VARIABLE text
                  RESULT_VARIABLE failed ERROR_QUIET)
  if(failed OR NOT text MATCHES "release (([0-9]+)\\.[0-9]+)")
    set(${reason} "${program} does not run" PARENT_SCOPE)
  elseif(CMAKE_MATCH_2 LESS 12)
    set(${reason} "${program} is older than CUDA 12" PARENT_SCOPE)
  else()
    set(${version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    tdbg_probe_nvcc("${program}" works)
    if(works)
      set(${nvcc} "${program}" PARENT_SCOPE)
    else()
      set(${reason} "${program} does not work with ${CMAKE_CXX_COMPILER}"
          PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Has `target` contain the kernels, if they can be compiled.  Sets
# TDBG_CUDA_REPORT to the file of what ptxas says about them, or to nothing.
function(tdbg_add_cuda_kernels target)
  set(TDBG_CUDA_REPORT "" PARENT_SCOPE)
  tdbg_find_nvcc(nvcc version reason)
  if(NOT nvcc)
    if(TDBG_CUDA STREQUAL "ON")
      message(FATAL_ERROR "TDBG_CUDA=ON, but ${reason}. Install the CUDA toolkit "
                          "(12 or later) or set CUDA_HOME")
    endif()
    message(STATUS "CUDA kernels: none, for ${reason}; tensors on a GPU are "
                   "reduced by the framework")
    return()
  endif()
  message(STATUS "CUDA kernels: ${nvcc} ${version}")
  set(source "${PROJECT_SOURCE_DIR}/cpp/reducers/cuda/kernels.cu")
  set(fatbin "${PROJECT_BINARY_DIR}/cuda/kernels.fatbin")
  set(report "${PROJECT_BINARY_DIR}/cuda/ptxas.txt")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/cuda")
  set(warnings "")
  if(TDBG_WERROR)
    set(warnings -Werror all-warnings)
  endif()
  add_custom_command(
    OUTPUT "${fatbin}"
    BYPRODUCTS "${report}"
    COMMAND
      "${CMAKE_COMMAND}" "-DREPORT=${report}" -P
      "${PROJECT_SOURCE_DIR}/cmake/RunNvcc.cmake" -- "${nvcc}" -fatbin
      -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" ${TDBG_CUDA_TARGETS} --threads 2
      -Xfatbin -compress-all -Xptxas -v ${warnings}
      "-I${PROJECT_SOURCE_DIR}/cpp" -MD -MF "${fatbin}.d" -MT "${fatbin}" -o
      "${fatbin}" "${source}"
    DEPENDS "${source}" "${PROJECT_SOURCE_DIR}/cmake/RunNvcc.cmake"
    DEPFILE "${fatbin}.d"
    COMMENT "Compiling CUDA kernels"
    VERBATIM)
  set(embedding "${PROJECT_SOURCE_DIR}/cpp/reducers/cuda/fatbin.cc")
  set_property(SOURCE "${embedding}" APPEND PROPERTY OBJECT_DEPENDS "${fatbin}")
  set_property(
    SOURCE "${embedding}" APPEND
    PROPERTY COMPILE_DEFINITIONS "TDBG_FATBIN=\"${fatbin}\""
             "TDBG_NVCC_VERSION=\"${version}\"")
  target_sources(${target} PRIVATE "${fatbin}")
  set(TDBG_CUDA_REPORT "${report}" PARENT_SCOPE)
endfunction()

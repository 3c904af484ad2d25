# Runs the command after `--` and writes what it says to REPORT; shows that only
# when the command fails.
#
#   cmake -DREPORT=ptxas.txt -P RunNvcc.cmake -- nvcc -Xptxas -v ...

cmake_minimum_required(VERSION 3.22)

set(command "")
set(is_command OFF)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(is_command)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(is_command ON)
  endif()
endforeach()

execute_process(COMMAND ${command} RESULT_VARIABLE failed OUTPUT_VARIABLE said
                ERROR_VARIABLE said)
if(failed)
  message(FATAL_ERROR "${said}")
endif()
file(WRITE "${REPORT}" "${said}")

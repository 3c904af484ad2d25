# Per-file compiler flags for the kernels of cpp/reducers and cpp/format, and their
# exclusion where the target machine or the compiler does not have the instruction
# set.
#
# The name of a file says what it is compiled for: avx2.cc, avx512.cc,
# avx512bf16.cc, or these followed by _ and more.  All other files are compiled
# for the baseline of the architecture.  What a build contains is announced by
# TDBG_HAVE_AVX2 and the like; what a processor can run is decided at run time
# (cpp/reducers/implementation.h).

include_guard(GLOBAL)
include(CheckCXXCompilerFlag)

set(TDBG_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TDBG_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq
                      ${TDBG_FLAGS_avx2} -mprefer-vector-width=512)
set(TDBG_FLAGS_avx512bf16 ${TDBG_FLAGS_avx512} -mavx512bf16)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC bug 105593: false alarms from within its own intrinsics.
  list(APPEND TDBG_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  list(APPEND TDBG_FLAGS_avx512bf16 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# Removes from the list named by `sources` what cannot be compiled, sets flags on
# what can, and returns the compile definitions in the variable `definitions`.
function(tdbg_select_instruction_sets sources definitions)
  set(selected ${${sources}})
  set(found "")
  foreach(isa IN ITEMS avx2 avx512 avx512bf16)
    set(files ${${sources}})
    list(FILTER files INCLUDE REGEX "/(reducers|format)/${isa}(_[^/]*)?\\.cc$")
    string(TOUPPER ${isa} upper)
    set(has_isa OFF)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
      list(JOIN TDBG_FLAGS_${isa} " " flags)
      check_cxx_compiler_flag("${flags}" TDBG_COMPILER_HAS_${upper})
      set(has_isa ${TDBG_COMPILER_HAS_${upper}})
    endif()
    if(files AND has_isa)
      set_property(SOURCE ${files} APPEND PROPERTY
                   COMPILE_OPTIONS ${TDBG_FLAGS_${isa}})
      list(APPEND found TDBG_HAVE_${upper}=1)
    elseif(files)
      list(REMOVE_ITEM selected ${files})
    endif()
  endforeach()
  set(${sources} ${selected} PARENT_SCOPE)
  set(${definitions} ${found} PARENT_SCOPE)
endfunction()

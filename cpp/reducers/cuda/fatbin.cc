#include "reducers/cuda/fatbin.h"

#ifdef TDBG_FATBIN
// The file that nvcc wrote (cmake/TdbgCuda.cmake), as it is.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".globl tdbg_cuda_fatbin_begin\n"
    ".hidden tdbg_cuda_fatbin_begin\n"
    ".globl tdbg_cuda_fatbin_end\n"
    ".hidden tdbg_cuda_fatbin_end\n"
    "tdbg_cuda_fatbin_begin:\n"
    ".incbin \"" TDBG_FATBIN
    "\"\n"
    "tdbg_cuda_fatbin_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte tdbg_cuda_fatbin_begin[];
extern "C" const std::byte tdbg_cuda_fatbin_end[];
#endif

namespace tdbg::cuda {

std::span<const std::byte> Fatbin() {
#ifdef TDBG_FATBIN
  return {tdbg_cuda_fatbin_begin, tdbg_cuda_fatbin_end};
#else
  return {};
#endif
}

const char* FatbinCompiler() {
#ifdef TDBG_FATBIN
  return "nvcc " TDBG_NVCC_VERSION;
#else
  return "";
#endif
}

}  // namespace tdbg::cuda

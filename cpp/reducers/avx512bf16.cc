// The statistics kernel for AVX-512 with instructions for bfloat16 (BF16).
// Compiled with those flags, so that only its entry points may have
// external linkage (reducers/moments.h).

#define TDBG_HAVE_DOT_OF_BFLOAT16

#include "reducers/lanes_avx512-inl.h"
// The lanes come first: the kernels are written over them.
#include "reducers/beside-inl.h"
#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx512BFloat16(const void* data, std::size_t n, DType dtype,
                              Pass pass, Moments* moments) {
  AccumulateAny(data, n, dtype, pass, moments);
}

void AccumulateDifferenceAvx512BFloat16(const void* a, const void* b,
                                        std::size_t n, DType dtype, Pass pass,
                                        Moments* moments) {
  AccumulateDifferenceAny(a, b, n, dtype, pass, moments);
}

}  // namespace tdbg

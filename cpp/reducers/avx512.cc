// The statistics kernel for AVX-512 (F, BW, VL, DQ).  Compiled with those
// flags, so that only its entry points may have external linkage
// (reducers/moments.h).

#include "reducers/lanes_avx512-inl.h"
// The lanes come first: the kernels are written over them.
#include "reducers/beside-inl.h"
#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx512(const void* data, std::size_t n, DType dtype, Pass pass,
                      Moments* moments) {
  AccumulateAny(data, n, dtype, pass, moments);
}

void AccumulateDifferenceAvx512(const void* a, const void* b, std::size_t n,
                                DType dtype, Pass pass, Moments* moments) {
  AccumulateDifferenceAny(a, b, n, dtype, pass, moments);
}

void SubtractAvx512(const void* a, const void* b, std::size_t n, DType dtype,
                    void* out) {
  SubtractAny(a, b, n, dtype, out);
}

void AccumulateAndCopyAvx512(const float* data, std::size_t n, float* copy,
                             Moments* moments) {
  AccumulateAndCopyFloats(data, n, copy, moments);
}

}  // namespace tdbg

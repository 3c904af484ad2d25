// The statistics kernel for AVX-512 (F, BW, VL, DQ).  Compiled with those
// flags, so that only AccumulateAvx512 may have external linkage
// (reducers/moments.h).

#include "reducers/lanes_avx512-inl.h"
// The lanes come first: the kernel is written over them.
#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx512(const void* data, std::size_t n, DType dtype, Pass pass,
                      Moments* moments) {
  AccumulateAny(data, n, dtype, pass, moments);
}

}  // namespace tdbg

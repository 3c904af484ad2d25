// The statistics kernel for AVX2, FMA and F16C.  Compiled with those flags, so
// that only AccumulateAvx2 may have external linkage (reducers/moments.h).

#include "reducers/lanes_avx2-inl.h"
// The lanes come first: the kernel is written over them.
#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx2(const void* data, std::size_t n, DType dtype, Pass pass,
                    Moments* moments) {
  AccumulateAny(data, n, dtype, pass, moments);
}

}  // namespace tdbg

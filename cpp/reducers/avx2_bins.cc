// The kernel of histograms for AVX2.  Compiled with its flags, so that only
// CountBinsAvx2 may have external linkage (reducers/moments.h).

#include "reducers/bins-inl.h"
#include "reducers/bins.h"

namespace tdbg {

void CountBinsAvx2(const void* data, std::size_t n, DType dtype, double scale,
                   BinTable* table) {
  CountBinsAny<SpareKeys>(data, n, dtype, scale, table);
}

}  // namespace tdbg

// The kernel of histograms for any processor.

#include "reducers/bins-inl.h"
#include "reducers/bins.h"

namespace tdbg {

void CountBinsPortable(const void* data, std::size_t n, DType dtype,
                       double scale, BinTable* table) {
  CountBinsAny<SpareKeys>(data, n, dtype, scale, table);
}

}  // namespace tdbg

// The kernels that count the elements of units, for AVX2.  Compiled with its
// flags, so that only CountRunsAvx2 and CountColumnsAvx2 may have external
// linkage (reducers/moments.h).

#include "reducers/unit_kernels-inl.h"
#include "reducers/unit_kernels.h"

namespace tdbg {

void CountRunsAvx2(const void* data, std::size_t n, std::ptrdiff_t stride,
                   std::size_t n_units, DType dtype, UnitRange range,
                   UnitCounts* units) {
  CountRunsAny(data, n, stride, n_units, dtype, range, units);
}

void CountColumnsAvx2(const void* const* rows, std::size_t n_rows,
                      std::size_t n_columns, DType dtype, UnitRange range,
                      std::uint32_t* active, std::uint32_t* out_of_range) {
  CountColumnsAny(rows, n_rows, n_columns, dtype, range, active, out_of_range);
}

}  // namespace tdbg

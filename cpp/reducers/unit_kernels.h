// The kernels that count the elements of units, one pair per instruction set.
//
// For the reason given in reducers/moments.h this header holds plain data and
// declarations only.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

// Elements > 0 are active, elements < low, > high
// or NaN out of range, all compared as doubles.
struct UnitRange {
  double low;
  double high;
};

// Each unit is a run of `n` contiguous elements; the next one's begins `stride`
// bytes later.  Adds to active and out_of_range of units[0] to units[n_units -
// 1]. REQUIRES: ItemSize(dtype) >= 2, HasStatistics(dtype); elements are
// aligned; n < 2^32.
void CountRunsPortable(const void* data, std::size_t n, std::ptrdiff_t stride,
                       std::size_t n_units, DType dtype, UnitRange range,
                       UnitCounts* units);
void CountRunsAvx2(const void* data, std::size_t n, std::ptrdiff_t stride,
                   std::size_t n_units, DType dtype, UnitRange range,
                   UnitCounts* units);
void CountRunsAvx512(const void* data, std::size_t n, std::ptrdiff_t stride,
                     std::size_t n_units, DType dtype, UnitRange range,
                     UnitCounts* units);

// Each of the rows holds an element of each of `n_columns` columns.  Adds to
// active[0] to active[n_columns - 1], and likewise to `out_of_range`.
// REQUIRES: as above; sums fit.
void CountColumnsPortable(const void* const* rows, std::size_t n_rows,
                          std::size_t n_columns, DType dtype, UnitRange range,
                          std::uint32_t* active, std::uint32_t* out_of_range);
void CountColumnsAvx2(const void* const* rows, std::size_t n_rows,
                      std::size_t n_columns, DType dtype, UnitRange range,
                      std::uint32_t* active, std::uint32_t* out_of_range);
void CountColumnsAvx512(const void* const* rows, std::size_t n_rows,
                        std::size_t n_columns, DType dtype, UnitRange range,
                        std::uint32_t* active, std::uint32_t* out_of_range);

}  // namespace tdbg

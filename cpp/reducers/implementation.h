// The named list of implementations of the statistics kernel, and the choice
// among them.
//
// The best one that the processor supports is chosen at the first use.  The
// environment variable
// TDBG_FORCE_IMPLEMENTATION=portable|avx2|avx512|avx512bf16 overrides the
// choice; an unknown name, or one this processor lacks, is an error that the
// bindings raise at import of a Hook or Trial, never in a training step.
//
// Thread safety: safe; the choice is made once.

#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"
#include "reducers/beside.h"
#include "reducers/bins.h"
#include "reducers/moments.h"
#include "reducers/unit_kernels.h"
#include "tensor/dtype.h"

namespace tdbg {

struct Implementation {
  std::string_view name;
  // Whether this processor can run it.
  bool (*supported)();
  // The kernel: see AccumulatePortable in reducers/moments.h.
  void (*accumulate)(const void* data, std::size_t n, DType dtype, Pass pass,
                     Moments* moments);
  // Kernels that read or write beside: see reducers/beside.h.
  void (*accumulate_difference)(const void* a, const void* b, std::size_t n,
                                DType dtype, Pass pass, Moments* moments);
  void (*accumulate_and_copy)(const float* data, std::size_t n, float* copy,
                              Moments* moments);
  void (*subtract)(const void* a, const void* b, std::size_t n, DType dtype,
                   void* out);
  // The kernel of histograms: see CountBinsPortable in reducers/bins.h.
  void (*count_bins)(const void* data, std::size_t n, DType dtype, double scale,
                     BinTable* table);
  // The kernels of unit summaries: see reducers/unit_kernels.h.
  void (*count_runs)(const void* data, std::size_t n, std::ptrdiff_t stride,
                     std::size_t n_units, DType dtype, UnitRange range,
                     UnitCounts* units);
  void (*count_columns)(const void* const* rows, std::size_t n_rows,
                        std::size_t n_columns, DType dtype, UnitRange range,
                        std::uint32_t* active, std::uint32_t* out_of_range);
};

// All that this build contains, best last.
[[nodiscard]] std::span<const Implementation> Implementations();

// The best supported one, or the one called `forced` unless that is empty.
[[nodiscard]] Result<const Implementation*> SelectImplementation(
    std::string_view forced);

// The active implementation, or why the forced one cannot be used.
[[nodiscard]] Result<const Implementation*> ActiveImplementation();

// The implementation in use; falls back to the portable one when the forced one
// is unusable (the error having been reported by whoever asked first).
[[nodiscard]] const Implementation& ImplementationInUse();

}  // namespace tdbg

// The named list of implementations of the statistics kernels, and the choice
// among them.
//
// The best one that the processor supports is chosen at the first use.  The
// environment variable TDBG_FORCE_IMPLEMENTATION=portable|avx2|avx512 overrides
// the choice; an unknown name, or one this processor lacks, is an error that
// the bindings raise at import of a Hook or Trial, never in a training step.
//
// Thread safety: safe; the choice is made once.

#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "tensor/summary.h"
#include "tensor/tensor_view.h"

namespace tdbg {

// How many elements a block holds: the unit of folding, shifting and merging.
inline constexpr std::size_t kBlockElements = 2048;

struct Implementation {
  std::string_view name;
  // Whether this processor can run it.
  bool (*supported)();
  // The summary of `n` contiguous elements at `data`.
  Summary (*reduce)(const void* data, std::size_t n, DType dtype, double scale);
};

// All that this build contains, best last.
[[nodiscard]] std::span<const Implementation> Implementations();

// The active implementation, or why the forced one cannot be used.
[[nodiscard]] Result<const Implementation*> ActiveImplementation();

// The same; falls back to the portable one when the forced one is unusable
// (the error having been reported by whoever asked first).
[[nodiscard]] const Implementation& ImplementationInUse();

}  // namespace tdbg

// Turns a row that a kernel wrote into a Summary, on the host.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "reducers/cuda/kernel_abi.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg::cuda {

// The row of a tensor of `count` elements, finished as Reduce does it.
// REQUIRES: HasStatistics(dtype).
[[nodiscard]] Summary ToSummary(const DeviceRow& row, std::uint64_t count,
                                DType dtype);

}  // namespace tdbg::cuda

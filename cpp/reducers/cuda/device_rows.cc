#include "reducers/cuda/device_rows.h"

#include "reducers/finish.h"

namespace tdbg::cuda {

Summary ToSummary(const DeviceRow& row, std::uint64_t count, DType dtype) {
  return Finish(row.moments, {.count = count,
                              .dtype = dtype,
                              .exponent = static_cast<int>(row.exponent),
                              .scale = row.scale});
}

}  // namespace tdbg::cuda

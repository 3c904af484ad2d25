// How the extremes of a dtype are held: ExtremeClassOf, for CUDA kernels as
// well.
//
// Thread safety: a pure function.

#pragma once

#include "base/host_device.h"
#include "tensor/dtype.h"

namespace tdbg {

TDBG_HOST_DEVICE constexpr ExtremeClass ExtremesOf(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return ExtremeClass::kInt64;
    case DType::kBool:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return ExtremeClass::kUInt64;
    default:
      return ExtremeClass::kFloat64;
  }
}

}  // namespace tdbg

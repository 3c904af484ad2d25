#include "tensor/dtype.h"

#include "base/check.h"
#include "tensor/extremes-inl.h"

namespace tdbg {
namespace {

struct Traits {
  std::uint32_t item_size;
  std::string_view name;
};

Traits TraitsOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return {1, "bool"};
    case DType::kUInt8:
      return {1, "uint8"};
    case DType::kInt8:
      return {1, "int8"};
    case DType::kUInt16:
      return {2, "uint16"};
    case DType::kInt16:
      return {2, "int16"};
    case DType::kUInt32:
      return {4, "uint32"};
    case DType::kInt32:
      return {4, "int32"};
    case DType::kUInt64:
      return {8, "uint64"};
    case DType::kInt64:
      return {8, "int64"};
    case DType::kFloat16:
      return {2, "float16"};
    case DType::kFloat32:
      return {4, "float32"};
    case DType::kFloat64:
      return {8, "float64"};
    case DType::kBFloat16:
      return {2, "bfloat16"};
    case DType::kFloat8E4M3Fn:
      return {1, "float8_e4m3fn"};
    case DType::kFloat8E5M2:
      return {1, "float8_e5m2"};
    case DType::kFloat8E4M3FnUz:
      return {1, "float8_e4m3fnuz"};
    case DType::kFloat8E5M2FnUz:
      return {1, "float8_e5m2fnuz"};
    case DType::kFloat8E8M0Fnu:
      return {1, "float8_e8m0fnu"};
    case DType::kComplex64:
      return {8, "complex64"};
    case DType::kComplex128:
      return {16, "complex128"};
    case DType::kNumpy:
    case DType::kInvalid:
      break;
  }
  return {0, ""};
}

}  // namespace

std::uint32_t ItemSize(DType dtype) { return TraitsOf(dtype).item_size; }

std::string_view DTypeName(DType dtype) { return TraitsOf(dtype).name; }

bool HasStatistics(DType dtype) {
  return !TraitsOf(dtype).name.empty() && dtype != DType::kComplex64 &&
         dtype != DType::kComplex128;
}

ExtremeClass ExtremeClassOf(DType dtype) {
  TDBG_DCHECK(HasStatistics(dtype));
  return ExtremesOf(dtype);
}

bool IsKnownDType(std::uint16_t code) {
  const auto dtype = static_cast<DType>(code);
  return dtype == DType::kNumpy || !TraitsOf(dtype).name.empty();
}

}  // namespace tdbg

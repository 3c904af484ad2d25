// The element types that tdbg stores, with their codes on disk.
//
// Implements docs/format.md, "Element types".  The named kinds are those whose
// statistics are defined (complex ones are stored but have no row).  Any other
// fixed-size NumPy dtype without objects or fields (datetime64[ns], U5,
// longdouble) is stored as kNumpy, with its `dtype.str` beside it.

#pragma once

#include <cstdint>
#include <string_view>

namespace tdbg {

// On disk: never renumber.
enum class DType : std::uint16_t {
  kInvalid = 0,
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kUInt32 = 6,
  kInt32 = 7,
  kUInt64 = 8,
  kInt64 = 9,
  kFloat16 = 16,
  kFloat32 = 17,
  kFloat64 = 18,
  kBFloat16 = 19,
  kFloat8E4M3Fn = 20,
  kFloat8E5M2 = 21,
  kFloat8E4M3FnUz = 22,
  kFloat8E5M2FnUz = 23,
  kFloat8E8M0Fnu = 24,
  kComplex64 = 32,
  kComplex128 = 33,
  kNumpy = 64,
};

// In which of three ways the minimum and maximum of a dtype are held, so that
// integers above 2^53 stay exact.  On disk: never renumber.
enum class ExtremeClass : std::uint8_t {
  kFloat64 = 0,
  kInt64 = 1,
  kUInt64 = 2,
};

// Bytes per element; 0 for kInvalid and for kNumpy (which varies).
[[nodiscard]] std::uint32_t ItemSize(DType dtype);

// NumPy's or ml_dtypes' name ("float32", "bfloat16", "float8_e4m3fn"); empty
// for kInvalid and kNumpy.
[[nodiscard]] std::string_view DTypeName(DType dtype);

// True where a statistics row is defined: bool, integers and real floats.
[[nodiscard]] bool HasStatistics(DType dtype);

// Signed integers are kInt64; unsigned ones and bool kUInt64; floats kFloat64.
// REQUIRES: HasStatistics(dtype).
[[nodiscard]] ExtremeClass ExtremeClassOf(DType dtype);

// Whether `code`, read from a file, is one of the enumerators above.
[[nodiscard]] bool IsKnownDType(std::uint16_t code);

}  // namespace tdbg

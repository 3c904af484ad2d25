#include "reducers/byte_values.h"

#include <cstring>
#include <limits>

#include "base/check.h"

namespace tdbg {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

using Values = std::array<double, 256>;

constexpr double PowerOfTwo(int exponent) {
  double power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

// Sign, exponent and `mantissa_bits`, all patterns finite numbers.
constexpr double Decode(unsigned byte, int mantissa_bits, int bias) {
  const unsigned magnitude = byte & 0x7fU;
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double one = PowerOfTwo(mantissa_bits);
  double mantissa = magnitude % (1U << mantissa_bits);
  if (exponent > 0) mantissa += one;
  const int scale = exponent > 0 ? exponent : 1;
  const double value = mantissa / one * PowerOfTwo(scale - bias);
  return byte >= 0x80U ? -value : value;
}

// As IEEE 754 has it: the top exponent is Inf and NaN.
constexpr Values E5M2() {
  Values values{};
  for (unsigned b = 0; b < 256; ++b) values[b] = Decode(b, 2, 15);
  for (const unsigned sign : {0x00U, 0x80U}) {
    values[sign | 0x7cU] = sign == 0 ? kInf : -kInf;
    for (unsigned b = 0x7d; b <= 0x7f; ++b) values[sign | b] = kNan;
  }
  return values;
}

// No Inf; NaN is all ones.
constexpr Values E4M3Fn() {
  Values values{};
  for (unsigned b = 0; b < 256; ++b) values[b] = Decode(b, 3, 7);
  values[0x7f] = kNan;
  values[0xff] = kNan;
  return values;
}

// No Inf, no negative zero: its pattern is the NaN.
constexpr Values FnUz(int mantissa_bits, int bias) {
  Values values{};
  for (unsigned b = 0; b < 256; ++b) values[b] = Decode(b, mantissa_bits, bias);
  values[0x80] = kNan;
  return values;
}

// Powers of two; no sign, no zero, no Inf.
constexpr Values E8M0Fnu() {
  Values values{};
  for (int b = 0; b < 255; ++b) {
    values[static_cast<std::size_t>(b)] = PowerOfTwo(b - 127);
  }
  values[0xff] = kNan;
  return values;
}

constexpr Values Unsigned() {
  Values values{};
  for (unsigned b = 0; b < 256; ++b) values[b] = b;
  return values;
}

constexpr Values Signed() {
  Values values = Unsigned();
  for (unsigned b = 128; b < 256; ++b) values[b] -= 256;
  return values;
}

constexpr Values Bool() {
  Values values{};
  for (unsigned b = 1; b < 256; ++b) values[b] = 1;
  return values;
}

constexpr Values kE4M3Fn = E4M3Fn();
constexpr Values kE5M2 = E5M2();
constexpr Values kE4M3FnUz = FnUz(3, 8);
constexpr Values kE5M2FnUz = FnUz(2, 16);
constexpr Values kE8M0Fnu = E8M0Fnu();
constexpr Values kUnsigned = Unsigned();
constexpr Values kSigned = Signed();
constexpr Values kBool = Bool();

}  // namespace

const Values& ByteValues(DType dtype) {
  TDBG_DCHECK(ItemSize(dtype) == 1);
  switch (dtype) {
    case DType::kFloat8E4M3Fn:
      return kE4M3Fn;
    case DType::kFloat8E5M2:
      return kE5M2;
    case DType::kFloat8E4M3FnUz:
      return kE4M3FnUz;
    case DType::kFloat8E5M2FnUz:
      return kE5M2FnUz;
    case DType::kFloat8E8M0Fnu:
      return kE8M0Fnu;
    case DType::kInt8:
      return kSigned;
    case DType::kBool:
      return kBool;
    default:
      return kUnsigned;
  }
}

void CountBytes(const void* data, std::size_t n, ByteCounts* counts) {
  // Several tables: runs of one value do not wait for their own last store.
  constexpr std::size_t kTables = 4;
  std::uint32_t tables[kTables][256];
  const auto* p = static_cast<const unsigned char*>(data);
  while (n > 0) {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    const std::size_t n_now = n < kMost ? n : kMost;
    std::memset(tables, 0, sizeof(tables));
    std::size_t i = 0;
    for (; i + kTables <= n_now; i += kTables) {
      for (std::size_t k = 0; k < kTables; ++k) ++tables[k][p[i + k]];
    }
    for (; i < n_now; ++i) ++tables[0][p[i]];
    for (std::size_t b = 0; b < 256; ++b) {
      for (const auto& table : tables) (*counts)[b] += table[b];
    }
    p += n_now;
    n -= n_now;
  }
}

const double* ByteValueTable(DType dtype) { return ByteValues(dtype).data(); }

}  // namespace tdbg

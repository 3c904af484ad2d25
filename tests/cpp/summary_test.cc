// Merging of rows: exact, and indifferent to empty ones.

#include "tensor/summary.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "reduce_reference.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

Summary RowOf(const std::vector<std::byte>& elements, std::size_t first,
              std::size_t n, DType dtype) {
  const std::size_t item = ItemSize(dtype);
  return ReferenceRow(std::span(elements).subspan(first * item, n * item),
                      dtype);
}

TDBG_TEST(MergedPartsAreTheRowOfTheWhole) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kInt64,
                            DType::kUInt64, DType::kBool}) {
    for (const Values values : {Values::kNormal, Values::kSprinkled,
                                Values::kLargeMean, Values::kRelu}) {
      constexpr std::size_t kElements = 1000;
      const auto elements = Make(dtype, values, kElements);
      const ExtremeClass extremes = ExtremeClassOf(dtype);
      const Summary whole = RowOf(elements, 0, kElements, dtype);
      for (const std::size_t part : {1U, 7U, 100U, 999U, 1000U}) {
        Summary merged = Summary::Empty(extremes);
        for (std::size_t at = 0; at < kElements; at += part) {
          const std::size_t n = std::min(part, kElements - at);
          merged.Merge(RowOf(elements, at, n, dtype), extremes);
        }
        EXPECT_EQ(merged.count, whole.count);
        EXPECT_EQ(merged.nan, whole.nan);
        EXPECT_EQ(merged.positive_infinity, whole.positive_infinity);
        EXPECT_EQ(merged.negative_infinity, whole.negative_infinity);
        EXPECT_EQ(merged.zero, whole.zero);
        EXPECT_EQ(merged.min.u64, whole.min.u64);
        EXPECT_EQ(merged.max.u64, whole.max.u64);
        EXPECT_EQ(merged.abs_min, whole.abs_min);
        EXPECT_CLOSE(merged.l1, whole.l1, 1e-12);
        EXPECT_CLOSE(merged.l2, whole.l2, 1e-12);
        EXPECT_LE(std::fabs(merged.mean - whole.mean),
                  1e-12 * whole.l1 / 1000 + 1e-300);
        EXPECT_CLOSE(merged.m2, whole.m2, 1e-9);
      }
    }
  }
}

TDBG_TEST(MergingTheEmptyRowChangesNothing) {
  for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kUInt8}) {
    const ExtremeClass extremes = ExtremeClassOf(dtype);
    const Summary row = RowOf(Make(dtype, Values::kNormal, 50), 0, 50, dtype);
    Summary left = Summary::Empty(extremes);
    left.Merge(row, extremes);
    Summary right = row;
    right.Merge(Summary::Empty(extremes), extremes);
    EXPECT_EQ(std::memcmp(&left, &row, sizeof(row)), 0);
    EXPECT_EQ(std::memcmp(&right, &row, sizeof(row)), 0);
  }
}

TDBG_TEST(RowsWithoutFiniteElementsAddOnlyTheirCounts) {
  Summary row =
      RowOf(Make(DType::kFloat32, Values::kNormal, 50), 0, 50, DType::kFloat32);
  const Summary before = row;
  row.Merge(
      RowOf(Make(DType::kFloat32, Values::kAllNan, 20), 0, 20, DType::kFloat32),
      ExtremeClass::kFloat64);
  EXPECT_EQ(row.count, 70U);
  EXPECT_EQ(row.nan, 20U);
  EXPECT_EQ(row.finite(), 50U);
  EXPECT_EQ(row.mean, before.mean);
  EXPECT_EQ(row.min.f64, before.min.f64);
}

TDBG_TEST(MergedL2DoesNotOverflow) {
  Summary a = Summary::Empty(ExtremeClass::kFloat64);
  a.count = 1;
  a.min.f64 = a.max.f64 = a.abs_min = a.mean = a.l1 = a.l2 = 3e200;
  Summary b = a;
  b.min.f64 = b.max.f64 = b.abs_min = b.mean = b.l1 = b.l2 = 4e200;
  a.Merge(b, ExtremeClass::kFloat64);
  EXPECT_CLOSE(a.l2, 5e200, 1e-15);
}

TDBG_TEST(IntegersAbove2To53KeepTheirExtremes) {
  Summary a = Summary::Empty(ExtremeClass::kUInt64);
  a.count = 1;
  a.min.u64 = a.max.u64 = (1ULL << 63) + 1;
  Summary b = a;
  b.min.u64 = b.max.u64 = (1ULL << 63) + 3;
  a.Merge(b, ExtremeClass::kUInt64);
  EXPECT_EQ(a.min.u64, (1ULL << 63) + 1);
  EXPECT_EQ(a.max.u64, (1ULL << 63) + 3);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

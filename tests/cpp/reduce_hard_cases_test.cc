// Tensors that statistics are known to get wrong, in every type that can hold
// them: float32 and narrower within 1e-7, float64 and precise mode within
// 1e-12. The same at their full size: benchmarks/reducers/accuracy.py.

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "hard_cases.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

void Check(const Summary& actual, const Summary& expected, double bound,
           const std::string& what) {
  const int before = Failures();
  const auto n = static_cast<double>(kHardElements);
  EXPECT_LE(std::fabs(actual.mean - expected.mean), bound * expected.l1 / n);
  EXPECT_CLOSE(std::sqrt(actual.m2 / n), std::sqrt(expected.m2 / n), bound);
  EXPECT_CLOSE(actual.l1, expected.l1, bound);
  EXPECT_CLOSE(actual.l2, expected.l2, bound);
  EXPECT_EQ(actual.min.f64, expected.min.f64);
  EXPECT_EQ(actual.max.f64, expected.max.f64);
  EXPECT_EQ(actual.abs_min, expected.abs_min);
  EXPECT_EQ(actual.zero, expected.zero);
  if (Failures() != before) Fail(__FILE__, __LINE__, "for " + what);
}

void CheckCase(const HardCase& of, DType dtype) {
  const std::vector<std::byte> elements = HardElements(of, dtype);
  const Summary expected = ReferenceRow(elements, dtype);
  const std::int64_t shape[] = {kHardElements};
  const TensorView view = ViewOf(elements.data(), dtype, shape);
  const bool narrow = dtype != DType::kFloat64;
  for (const Implementation* implementation : Supported()) {
    const std::string what = std::string(implementation->name) + ", " +
                             std::string(DTypeName(dtype)) + ", " + of.name;
    Check(ReduceWith(view, {}, *implementation), expected,
          narrow ? 1e-7 : 1e-12, what);
    Check(ReduceWith(view, {.precise = true}, *implementation), expected, 1e-12,
          what + ", precise");
  }
}

TDBG_TEST(HardCasesKeepTheBounds) {
  for (const HardCase& of : kHardCases) {
    CheckCase(of, DType::kFloat32);
    CheckCase(of, DType::kFloat64);
    if (of.fits_half) {
      CheckCase(of, DType::kFloat16);
      CheckCase(of, DType::kBFloat16);
    }
  }
}

// All values of the kinds that other tests know, in precise mode.
TDBG_TEST(PreciseModeIsAsExactAsFloat64) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
        DType::kFloat8E4M3Fn, DType::kFloat8E5M2, DType::kFloat8E4M3FnUz,
        DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu}) {
    for (int values = 0; values < kNumberOfValues; ++values) {
      for (const std::size_t n : {1U, 17U, 300U, 2049U, 20011U}) {
        const std::vector<std::byte> elements =
            Make(dtype, static_cast<Values>(values), n);
        const Summary expected = ReferenceRow(elements, dtype);
        const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
        for (const Implementation* implementation : Supported()) {
          const int before = Failures();
          const Summary actual =
              ReduceWith(ViewOf(elements.data(), dtype, shape),
                         {.precise = true}, *implementation);
          EXPECT_EQ(actual.nan, expected.nan);
          EXPECT_EQ(actual.positive_infinity, expected.positive_infinity);
          EXPECT_EQ(actual.negative_infinity, expected.negative_infinity);
          EXPECT_EQ(actual.zero, expected.zero);
          EXPECT_EQ(actual.min.f64, expected.min.f64);
          EXPECT_EQ(actual.max.f64, expected.max.f64);
          EXPECT_CLOSE(actual.l1, expected.l1, 1e-12);
          EXPECT_CLOSE(actual.l2, expected.l2, 1e-12);
          EXPECT_LE(std::fabs(actual.mean - expected.mean),
                    1e-12 * expected.l1 / static_cast<double>(n));
          // Where all elements are alike the reference has rounding errors.
          if (std::fabs(actual.m2 - expected.m2) >
              1e-30 * expected.l2 * expected.l2) {
            EXPECT_CLOSE(actual.m2, expected.m2, 1e-12);
          }
          if (Failures() != before) {
            Fail(__FILE__, __LINE__,
                 "for " + std::string(implementation->name) + ", " +
                     std::string(DTypeName(dtype)) + ", " +
                     ValuesName(static_cast<Values>(values)) +
                     ", n=" + std::to_string(n));
          }
        }
      }
    }
  }
}

// Integers about the border between those that are summed as such and those
// that are summed as doubles, in blocks of one kind and of both.
template <typename T>
void CheckIntegers(DType dtype) {
  constexpr std::int64_t kBorder =
      std::is_signed_v<T> ? std::int64_t{1} << 19 : std::int64_t{1} << 20;
  const std::int64_t least = std::is_signed_v<T> ? -kBorder : 0;
  const auto large = static_cast<std::int64_t>(3) << (8 * sizeof(T) - 4);
  std::mt19937_64 random(5);
  for (const std::size_t n : {1U, 7U, 16U, 77U, 2048U, 4097U, 30001U}) {
    for (int kind = 0; kind < 6; ++kind) {
      std::vector<std::byte> elements(n * sizeof(T));
      for (std::size_t i = 0; i < n; ++i) {
        std::int64_t x =
            least + static_cast<std::int64_t>(
                        random() % static_cast<std::uint64_t>(kBorder - least));
        if (kind == 1) x = i % 3 == 0 ? 0 : x;
        if (kind == 2) x = kBorder - 1;
        if (kind == 3) x = i == n - 1 ? kBorder : least;
        if (kind == 4) x = i >= n / 2 ? large - x : x;
        if (kind == 5) x = i == n / 3 ? 1 : 2;
        Put(static_cast<T>(x), elements.data() + i * sizeof(T));
      }
      const Summary expected = ReferenceRow(elements, dtype);
      const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
      for (const Implementation* implementation : Supported()) {
        const int before = Failures();
        const Summary actual = ReduceWith(ViewOf(elements.data(), dtype, shape),
                                          {}, *implementation);
        EXPECT_EQ(actual.min.u64, expected.min.u64);
        EXPECT_EQ(actual.max.u64, expected.max.u64);
        EXPECT_EQ(actual.abs_min, expected.abs_min);
        EXPECT_EQ(actual.zero, expected.zero);
        EXPECT_LE(std::fabs(actual.mean - expected.mean),
                  1e-12 * expected.l1 / static_cast<double>(n));
        EXPECT_CLOSE(actual.l1, expected.l1, 1e-12);
        EXPECT_CLOSE(actual.l2, expected.l2, 1e-12);
        EXPECT_CLOSE(actual.m2, expected.m2, 1e-12);
        if (Failures() != before) {
          Fail(__FILE__, __LINE__,
               "for " + std::string(implementation->name) + ", " +
                   std::string(DTypeName(dtype)) + ", kind " +
                   std::to_string(kind) + ", n=" + std::to_string(n));
        }
      }
    }
  }
}

TDBG_TEST(IntegersAboutTheBorderOfSmallOnesKeepTheBounds) {
  CheckIntegers<std::int32_t>(DType::kInt32);
  CheckIntegers<std::uint32_t>(DType::kUInt32);
  CheckIntegers<std::int64_t>(DType::kInt64);
  CheckIntegers<std::uint64_t>(DType::kUInt64);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

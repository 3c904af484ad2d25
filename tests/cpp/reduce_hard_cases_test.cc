// Tensors that statistics are known to get wrong, in every type that can hold
// them: float32 and narrower within 1e-7, float64 and precise mode within
// 1e-12. The same at their full size: benchmarks/reducers/accuracy.py.

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

constexpr std::size_t kElements = 700001;  // More than a segment of each type.

struct Case {
  const char* name;
  // The i-th element, from a standard normal and a uniform number.
  std::function<double(std::size_t i, double normal, double uniform)> draw;
  bool fits_half;
};

const Case kCases[] = {
    {"N(0, 0.02)", [](auto, double g, double) { return 0.02 * g; }, true},
    {"N(0.5, 1e-3)", [](auto, double g, double) { return 0.5 + 1e-3 * g; },
     true},
    {"N(1e4, 0.02)", [](auto, double g, double) { return 1e4 + 0.02 * g; },
     true},
    {"N(1e6, 1)", [](auto, double g, double) { return 1e6 + g; }, false},
    {"lognormal, s=8",
     [](auto, double g, double) { return std::exp(8 * std::fmin(g, 4.7)); },
     false},
    {"sorted",
     [](std::size_t i, double, double) {
       return static_cast<double>(i) / kElements;
     },
     true},
    {"pairs of +-1e8",
     [](std::size_t i, double g, double) {
       return (i % 2 == 0 ? 1e8 : -1e8) + g;
     },
     false},
    {"outlier of 1e30",
     [](std::size_t i, double g, double) {
       return i == kElements / 3 ? 1e30 : g;
     },
     false},
    {"N(1e9, 1e-3)", [](auto, double g, double) { return 1e9 + 1e-3 * g; },
     false},
    {"half of them zero", [](auto, double g, double) { return g > 0 ? g : 0; },
     true},
    {"all positive", [](auto, double g, double) { return std::fabs(g); }, true},
    {"sigmoid", [](auto, double g, double) { return 1 / (1 + std::exp(-g)); },
     true},
    {"two values",
     [](auto, double, double u) { return u < 0.5 ? 1 : 1.0078125; }, true},
    {"one other value",
     [](std::size_t i, double, double) {
       return i == kElements / 2 ? 1.0078125 : 1.0;
     },
     true},
    {"the mean moves",
     [](std::size_t i, double g, double) {
       return g + (i > kElements / 2 ? 3000 : -3000);
     },
     true},
};

std::vector<std::byte> Elements(const Case& of, DType dtype) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const std::size_t item = ItemSize(dtype);
  std::vector<std::byte> elements(kElements * item);
  for (std::size_t i = 0; i < kElements; ++i) {
    const double g = normal(random);
    const double x = of.draw(i, g, uniform(random));
    std::byte* p = elements.data() + i * item;
    switch (dtype) {
      case DType::kFloat32:
        Put(static_cast<float>(x), p);
        break;
      case DType::kFloat16:
        Put(ToFloat16(x), p);
        break;
      case DType::kBFloat16:
        Put(ToBFloat16(x), p);
        break;
      default:
        Put(x, p);
    }
  }
  return elements;
}

void Check(const Summary& actual, const Summary& expected, double bound,
           const std::string& what) {
  const int before = Failures();
  const auto n = static_cast<double>(kElements);
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

void CheckCase(const Case& of, DType dtype) {
  const std::vector<std::byte> elements = Elements(of, dtype);
  const Summary expected = ReferenceRow(elements, dtype);
  const std::int64_t shape[] = {kElements};
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
  for (const Case& of : kCases) {
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

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

// Tensors that statistics are known to get wrong, by the kernel: float32 and
// narrower within 1e-7, float64 within 1e-12; and beside what the CPU finds.

#include <cmath>
#include <string>
#include <vector>

#include "cuda_launch.h"
#include "expect_row.h"
#include "hard_cases.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

void Check(const HardCase& of, DType dtype) {
  const std::vector<std::byte> elements = HardElements(of, dtype);
  const std::string what = std::string(DTypeName(dtype)) + ", " + of.name;
  const Summary row = CudaReduce(elements.data(), kHardElements, dtype, 3);
  ExpectRow(row, ReferenceRow(elements, dtype), dtype, what);
  const std::int64_t shape[] = {kHardElements};
  // Of the CPU's modes the one that is exact to 1e-12.
  ExpectRow(row,
            Reduce(ViewOf(elements.data(), dtype, shape), {.precise = true}),
            dtype, what + ", beside the CPU");
}

TDBG_TEST(HardCasesKeepTheBounds) {
  for (const HardCase& of : kHardCases) {
    Check(of, DType::kFloat32);
    Check(of, DType::kFloat64);
    if (of.fits_half) {
      Check(of, DType::kFloat16);
      Check(of, DType::kBFloat16);
    }
  }
}

// Squares beyond the range of float64, in some tiles or all; the others must
// not disappear, nor count where they do not.
TDBG_TEST(Float64OutOfRangeIsBroughtIntoIt) {
  constexpr std::size_t kElements = 20000;  // Ten tiles.
  const struct {
    double first;
    double second;
  } kScales[] = {{1e200, 1e200},   {1e-200, 1e-200}, {1e200, 1},
                 {1, 1e200},       {1e-200, 0},      {0, 1e-200},
                 {1e-200, 1e-150}, {1e300, 1e-300},  {1, 1e-200}};
  for (const auto& scale : kScales) {
    std::vector<std::byte> elements =
        Make(DType::kFloat64, Values::kNormal, kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      std::byte* p = elements.data() + 8 * i;
      const double by = i < kElements / 2 ? scale.first : scale.second;
      Put(At<double>(p) * by, p);
    }
    const Summary expected = ReferenceRow(elements, DType::kFloat64);
    const Summary row = CudaReduce(elements.data(), kElements, DType::kFloat64);
    const int before = Failures();
    EXPECT_CLOSE(row.l2, expected.l2, 1e-12);
    EXPECT_CLOSE(row.l1, expected.l1, 1e-12);
    EXPECT_CLOSE(row.m2, expected.m2, 1e-11);
    EXPECT_LE(std::fabs(row.mean - expected.mean),
              1e-12 * expected.l1 / kElements);
    EXPECT_EQ(row.zero, expected.zero);
    if (Failures() != before) {
      Fail(__FILE__, __LINE__,
           "for " + Show(scale.first) + ", " + Show(scale.second));
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

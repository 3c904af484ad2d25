// Tensors that statistics are known to get wrong, by the kernel: float32 and
// narrower within 1e-7, float64 within 1e-12; and beside what the CPU finds.

#include <cmath>
#include <cstring>
#include <random>
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

// Their roundings do not average out: these shares are summed in double.
TDBG_TEST(AFewElementsThatOutweighTheOthersKeepTheBound) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::vector<std::byte>> tensors;
  CudaTable table;
  for (std::size_t round = 0; round < 600; ++round) {
    const bool is_short = round % 2 == 0;
    const std::size_t n = is_short ? 3 + random() % 40 : 1536 + random() % 512;
    const std::size_t n_heavy = is_short ? n : 1 + random() % 3;
    std::vector<float> values(n);
    for (float& x : values) x = 1e-6F * normal(random);
    for (std::size_t i = 0; i < n_heavy; ++i) {
      values[is_short ? i : random() % n] = 1 + 0.3F * normal(random);
    }
    tensors.emplace_back(4 * n);
    std::memcpy(tensors.back().data(), values.data(), 4 * n);
  }
  for (const auto& t : tensors) {
    table.Add(t.data(), t.size() / 4, DType::kFloat32);
  }
  const std::vector<Summary> rows = table.Summaries(3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ExpectRow(rows[i], ReferenceRow(tensors[i], DType::kFloat32),
              DType::kFloat32, "few, tensor " + std::to_string(i));
  }
}

// What tiles begin with, of which the shift is made, is like nothing else in
// them: the sum of squares about the shift is many times that about the mean.
TDBG_TEST(ATileThatBeginsUnlikeItsRestKeepsTheBound) {
  constexpr std::size_t kElements = 17U << 20;  // Tiles of 64 KiB.
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    values[i] = i % 16384 < 1024 ? 1.7F : 1.1F;
  }
  std::vector<std::byte> elements(4 * kElements);
  std::memcpy(elements.data(), values.data(), elements.size());
  ExpectRow(CudaReduce(elements.data(), kElements, DType::kFloat32),
            ReferenceRow(elements, DType::kFloat32), DType::kFloat32,
            "tiles that begin unlike their rest");
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

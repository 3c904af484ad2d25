// The opt-in kernels, against the CPU's: counts are exact.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda_emulator/emulator.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/cuda/kernel_abi.h"
#include "reducers/histogram.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

void CheckUnits(const std::vector<std::byte>& elements, DType dtype,
                const std::vector<std::int64_t>& shape, double low,
                double high) {
  const std::size_t axis = UnitAxis(shape.size());
  const TensorView view = ViewOf(elements.data(), dtype, shape);
  std::vector<UnitCounts> expected(static_cast<std::size_t>(shape[axis]));
  CountUnits(view, axis, low, high, expected);
  cuda::UnitEntry entry{};
  std::vector<std::uint64_t> counts(2 * expected.size());
  entry.address = reinterpret_cast<std::uintptr_t>(elements.data());
  entry.n_units = expected.size();
  entry.count_per_unit = view.count() / expected.size();
  entry.low = low;
  entry.high = high;
  entry.counts = reinterpret_cast<std::uintptr_t>(counts.data());
  entry.dtype = static_cast<std::uint32_t>(dtype);
  std::int64_t stride = ItemSize(dtype);
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    if (d == axis) {
      entry.unit_stride = stride;
    } else {
      extents.insert(extents.begin(), shape[d]);
      strides.insert(strides.begin(), stride);
    }
  }
  entry.n_dims = static_cast<std::uint32_t>(extents.size());
  std::ranges::copy(extents, entry.extents);
  std::ranges::copy(strides, entry.strides);
  void* args[] = {&entry};
  EXPECT_TRUE(cuda_emulator::RunKernel(cuda::kUnitCountsKernel, {2},
                                       {cuda::kBlockThreads}, 0, args));
  for (std::size_t u = 0; u < expected.size(); ++u) {
    EXPECT_EQ(counts[u], expected[u].active);
    EXPECT_EQ(counts[expected.size() + u], expected[u].out_of_range);
  }
}

TDBG_TEST(UnitsAreCountedAsOnTheCpu) {
  const std::vector<std::int64_t> kShapes[] = {
      {700, 37}, {3, 5, 7, 11}, {1, 33}, {40}, {2, 3, 9001}, {17, 64, 2}};
  for (const DType dtype : kDTypes) {
    for (const auto& shape : kShapes) {
      const std::size_t n = ViewOf(nullptr, dtype, shape).count();
      const std::vector<std::byte> elements =
          Make(dtype, Values::kSprinkled, n);
      CheckUnits(elements, dtype, shape, -0.5, 1.25);
    }
  }
}

void CheckBins(const std::vector<std::byte>& elements, DType dtype,
               double scale) {
  const std::size_t n = elements.size() / ItemSize(dtype);
  const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
  const BinCounts expected =
      CountBins(ViewOf(elements.data(), dtype, shape), scale);
  std::vector<std::uint32_t> bins(65536);
  cuda::BinEntry entry{};
  entry.address = reinterpret_cast<std::uintptr_t>(elements.data());
  entry.count = n;
  entry.scale = scale;
  entry.bins = reinterpret_cast<std::uintptr_t>(bins.data());
  entry.dtype = static_cast<std::uint32_t>(dtype);
  void* args[] = {&entry};
  EXPECT_TRUE(cuda_emulator::RunKernel(cuda::kHistogramKernel, {2},
                                       {cuda::kBlockThreads}, 0, args));
  BinCounts found;
  for (std::size_t key = 0; key < bins.size(); ++key) {
    if (bins[key] == 0) continue;
    found.keys.push_back(static_cast<std::uint16_t>(key));
    found.counts.push_back(bins[key]);
  }
  EXPECT_TRUE(found.keys == expected.keys);
  EXPECT_TRUE(found.counts == expected.counts);
}

TDBG_TEST(BinsAreThoseOfTheCpu) {
  for (const DType dtype : kDTypes) {
    const bool is_float = ExtremeClassOf(dtype) == ExtremeClass::kFloat64;
    for (int values = 0; values < kNumberOfValues; ++values) {
      const std::vector<std::byte> elements =
          Make(dtype, static_cast<Values>(values), 3001);
      CheckBins(elements, dtype, 1.0);
      if (is_float) CheckBins(elements, dtype, 1.0 / 3);
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

// Histograms of every element type, layout and instruction set, against bins
// found by arithmetic in long double.

#include "reducers/histogram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/bins.h"
#include "reducers/implementation.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

// Bits of float32: 1 of sign, 8 of an exponent that counts from 2^-127, 7 of
// mantissa.  Below 2^-126 bins are 2^-133 wide.
std::uint16_t ExpectedKey(long double x) {
  if (std::isnan(x)) return 0x7fc0;
  if (x == 0) return 0;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const long double magnitude = std::fabs(x);
  int key = 0;
  if (std::isinf(magnitude)) {
    key = 0x7f80;
  } else if (magnitude >= std::ldexp(1.0L, 128)) {
    key = 0x7f7f;
  } else if (magnitude < std::ldexp(1.0L, -126)) {
    key = std::max(1, static_cast<int>(std::ldexp(magnitude, 133)));
  } else {
    const int exponent = std::ilogb(magnitude);
    const long double mantissa = std::ldexp(magnitude, -exponent);  // 1 to 2.
    key = (exponent + 127) * 128 + static_cast<int>((mantissa - 1) * 128);
  }
  return static_cast<std::uint16_t>(key | sign);
}

BinCounts Expected(std::span<const std::byte> elements, DType dtype,
                   double scale) {
  const std::size_t item = ItemSize(dtype);
  std::map<std::uint16_t, std::uint64_t> counts;
  for (std::size_t i = 0; i < elements.size(); i += item) {
    const long double x = ValueAt(elements.data() + i, dtype);
    // A product is formed in double; integers have none.
    const long double scaled =
        scale == 1.0 ? x : static_cast<double>(x) * scale;
    ++counts[ExpectedKey(scaled)];
  }
  BinCounts bins;
  for (const auto& [key, count] : counts) {
    bins.keys.push_back(key);
    bins.counts.push_back(count);
  }
  return bins;
}

void ExpectSame(const BinCounts& actual, const BinCounts& expected,
                const std::string& what) {
  if (actual.keys == expected.keys && actual.counts == expected.counts) return;
  std::string difference;
  for (std::size_t i = 0;
       i < std::max(actual.keys.size(), expected.keys.size()); ++i) {
    const auto show = [i](const BinCounts& bins) {
      if (i >= bins.keys.size()) return std::string("nothing");
      return std::to_string(bins.keys[i]) + ": " +
             std::to_string(bins.counts[i]);
    };
    if (show(actual) == show(expected)) continue;
    difference = show(actual) + " instead of " + show(expected);
    break;
  }
  Fail(__FILE__, __LINE__, what + ": " + difference);
}

TensorView ViewOf(const void* data, DType dtype,
                  std::span<const std::int64_t> shape,
                  std::span<const std::int64_t> strides = {}) {
  return {.data = data,
          .dtype = dtype,
          .item_size = ItemSize(dtype),
          .shape = shape,
          .strides = strides};
}

void CheckAll(const TensorView& view, double scale, const std::string& what) {
  std::vector<std::byte> copy(view.n_bytes());
  CopyContiguous(view, copy.data());
  const BinCounts expected = Expected(copy, view.dtype, scale);
  for (const Implementation& implementation : Implementations()) {
    if (!implementation.supported()) continue;
    ExpectSame(CountBinsWith(view, scale, implementation), expected,
               std::string(implementation.name) + ", " +
                   std::string(DTypeName(view.dtype)) + ", " + what);
  }
}

TDBG_TEST(EveryElementFallsIntoItsBin) {
  for (const DType dtype : kDTypes) {
    for (int kind = 0; kind < kNumberOfValues; ++kind) {
      const auto values = static_cast<Values>(kind);
      const std::vector<std::byte> elements = Make(dtype, values, 5000);
      for (const std::int64_t n :
           {0, 1, 2, 15, 16, 17, 33, 255, 1023, 1024, 1025, 2049, 5000}) {
        const std::int64_t shape[] = {n};
        CheckAll(ViewOf(elements.data(), dtype, shape), 1.0,
                 std::string(ValuesName(values)) + ", " + std::to_string(n));
      }
    }
  }
}

TDBG_TEST(ScaledElementsFallIntoTheBinsOfTheirProducts) {
  for (const DType dtype : kDTypes) {
    if (ExtremeClassOf(dtype) != ExtremeClass::kFloat64) continue;
    for (const Values values : {Values::kSprinkled, Values::kRandomBits,
                                Values::kDenormal, Values::kMixedSizes}) {
      const std::int64_t shape[] = {3000};
      const std::vector<std::byte> elements = Make(dtype, values, 3000);
      const TensorView view = ViewOf(elements.data(), dtype, shape);
      for (const double scale :
           {1.0, -1.0, 0x1p-16, -0x1p-1, 0x1p-140, 0x1p3, 0x1p120, 0.3, -7.0,
            1e-30, 1e300, 1 - 0x1p-53}) {
        CheckAll(view, scale,
                 std::string(ValuesName(values)) + " times " +
                     std::to_string(scale));
      }
    }
  }
}

// Both sides of every border, and what lies beyond the bins.
TDBG_TEST(BordersOfDoublesAreExact) {
  std::vector<double> values = {0.0, -0.0, 5e-324, -5e-324, 1e-300, 1e308};
  for (int exponent = -160; exponent <= 140; ++exponent) {
    for (const double mantissa : {1.0, 1.0078125, 1.5, 1.9921875}) {
      const double border = std::ldexp(mantissa, exponent);
      for (const double x :
           {border, std::nextafter(border, 0), std::nextafter(border, 1e308)}) {
        values.push_back(x);
        values.push_back(-x);
      }
    }
  }
  for (const double x : values) {
    EXPECT_EQ(BinKey(x), ExpectedKey(x));
    const std::int64_t shape[] = {1};
    CheckAll(ViewOf(&x, DType::kFloat64, shape), 1.0, std::to_string(x));
  }
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  CheckAll(ViewOf(values.data(), DType::kFloat64, shape), 1.0, "borders");
}

TDBG_TEST(LargeIntegersAreNotRoundedUp) {
  std::vector<std::int64_t> values;
  for (int bit = 0; bit < 63; ++bit) {
    const std::int64_t power = std::int64_t{1} << bit;
    for (const std::int64_t x : {power, power - 1, power + 1}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  values.push_back(std::numeric_limits<std::int64_t>::min());
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  CheckAll(ViewOf(values.data(), DType::kInt64, shape), 1.0, "signed");
  CheckAll(ViewOf(values.data(), DType::kUInt64, shape), 1.0, "unsigned");
}

TDBG_TEST(AnyLayoutIsCounted) {
  struct Layout {
    const char* name;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  // In elements.
    std::int64_t first;
  };
  const Layout layouts[] = {
      {"scalar", {}, {}, 3},
      {"transposed", {40, 60}, {1, 40}, 0},
      {"backwards", {30, 40}, {-40, -1}, 1199},
      {"broadcast", {70, 50}, {0, 1}, 0},
      {"every other", {20, 60}, {120, 2}, 1},
      {"without elements", {3, 0, 2}, {}, 0},
  };
  for (const DType dtype : kDTypes) {
    const auto item = static_cast<std::int64_t>(ItemSize(dtype));
    const std::vector<std::byte> elements =
        Make(dtype, Values::kSprinkled, 5000);
    for (const Layout& layout : layouts) {
      std::vector<std::int64_t> strides = layout.strides;
      for (std::int64_t& stride : strides) stride *= item;
      CheckAll(ViewOf(elements.data() + layout.first * item, dtype,
                      layout.shape, strides),
               1.0, layout.name);
    }
    std::vector<std::byte> room(elements.size() + 1);
    std::copy(elements.begin(), elements.end(), room.begin() + 1);
    const std::int64_t shape[] = {5000};
    CheckAll(ViewOf(room.data() + 1, dtype, shape), 1.0, "misaligned");
  }
}

// What one tensor leaves in the table must not show in the next.
TDBG_TEST(TablesAreEmptyForTheNextTensor) {
  const std::int64_t shape[] = {3000};
  for (const Values values :
       {Values::kRandomBits, Values::kRelu, Values::kSprinkled, Values::kNormal,
        Values::kAllZero, Values::kRandomBits, Values::kDenormal}) {
    const std::vector<std::byte> elements = Make(DType::kFloat32, values, 3000);
    CheckAll(ViewOf(elements.data(), DType::kFloat32, shape), 1.0,
             ValuesName(values));
  }
}

TDBG_TEST(ThreadsDoNotMeet) {
  const std::int64_t shape[] = {5000};
  const std::vector<std::byte> elements =
      Make(DType::kFloat32, Values::kRandomBits, 5000);
  const TensorView view = ViewOf(elements.data(), DType::kFloat32, shape);
  const BinCounts expected = CountBins(view);
  std::array<BinCounts, 4> found;
  std::vector<std::thread> threads;
  for (BinCounts& bins : found) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) bins = CountBins(view);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const BinCounts& bins : found) ExpectSame(bins, expected, "thread");
}

// More than the counters of a table may take at once; one element, seen often.
TDBG_TEST(CountsBeyondThoseOfATableAreExact) {
  const std::uint16_t one = 0x3f80;
  const std::int64_t n = static_cast<std::int64_t>(kMostCounted) + 12345;
  const std::int64_t shape[] = {n};
  const std::int64_t strides[] = {0};
  const BinCounts bins =
      CountBins(ViewOf(&one, DType::kBFloat16, shape, strides));
  EXPECT_EQ(bins.keys.size(), 1U);
  EXPECT_EQ(bins.counts.front(), static_cast<std::uint64_t>(n));
}

TDBG_TEST(MergedBinsAreThoseOfAllElements) {
  const std::vector<std::byte> elements =
      Make(DType::kFloat32, Values::kRandomBits, 4000);
  const auto bins_of = [&](std::size_t first, std::size_t n) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(n)};
    return CountBins(
        ViewOf(elements.data() + 4 * first, DType::kFloat32, shape));
  };
  for (const std::size_t n : {0U, 1U, 1700U, 4000U}) {
    BinCounts merged = bins_of(0, n);
    merged.Merge(bins_of(n, 4000 - n));
    ExpectSame(merged, bins_of(0, 4000), std::to_string(n));
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

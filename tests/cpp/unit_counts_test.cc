// Counts per unit, for every element type and layout, against a plain loop.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/implementation.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

std::vector<UnitCounts> Expected(const TensorView& view, std::size_t axis,
                                 double low, double high) {
  std::vector<std::byte> copy(view.n_bytes());
  CopyContiguous(view, copy.data());
  std::size_t inner = 1;
  for (std::size_t i = axis + 1; i < view.shape.size(); ++i) {
    inner *= static_cast<std::size_t>(view.shape[i]);
  }
  const auto n_units = static_cast<std::size_t>(view.shape[axis]);
  std::vector<UnitCounts> units(n_units);
  for (std::size_t i = 0; i < view.count(); ++i) {
    const auto x = static_cast<double>(
        ValueAt(copy.data() + i * view.item_size, view.dtype));
    UnitCounts& unit = units[i / inner % n_units];
    ++unit.count;
    if (x > 0) ++unit.active;
    if (x < low || x > high || std::isnan(x)) ++unit.out_of_range;
  }
  return units;
}

void Check(const TensorView& view, double low, double high,
           const std::string& what) {
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    const std::vector<UnitCounts> expected = Expected(view, axis, low, high);
    for (const Implementation& implementation : Implementations()) {
      if (!implementation.supported()) continue;
      std::vector<UnitCounts> units(expected.size());
      CountUnitsWith(view, axis, low, high, implementation, units);
      const int before = Failures();
      for (std::size_t u = 0; u < units.size(); ++u) {
        EXPECT_EQ(units[u].active, expected[u].active);
        EXPECT_EQ(units[u].out_of_range, expected[u].out_of_range);
        EXPECT_EQ(units[u].count, expected[u].count);
      }
      if (Failures() != before) {
        Fail(__FILE__, __LINE__,
             "for " + what + ", axis " + std::to_string(axis) + ", " +
                 std::string(implementation.name));
      }
    }
  }
}

TDBG_TEST(UnitsOfAnyTypeLayoutAndAxisAreCounted) {
  struct Layout {
    const char* name;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  // In elements; none: contiguous.
    std::int64_t first;
  };
  const Layout layouts[] = {
      {"vector", {700}, {}, 0},
      {"rows and columns", {31, 300}, {}, 0},
      {"images", {4, 5, 7, 11}, {}, 0},
      {"images, channels last", {4, 5, 7, 11}, {385, 1, 55, 5}, 0},
      {"backwards", {30, 40}, {-40, -1}, 1199},
      {"broadcast", {7, 50}, {0, 1}, 0},
      {"every other", {20, 30}, {100, 2}, 1},
      {"one unit", {50, 1}, {}, 0},
      {"many columns", {3, 2500}, {}, 0},
      {"few columns", {1001, 9}, {}, 0},
      {"few columns with gaps", {90, 9}, {100, 1}, 3},
      {"short runs", {3, 700, 2, 2}, {}, 0},
      {"runs", {2, 5, 10, 13}, {}, 0},
      {"overlapping", {30, 40}, {1, 1}, 0},
  };
  for (const DType dtype : kDTypes) {
    const auto item = static_cast<std::int64_t>(ItemSize(dtype));
    for (const Values values :
         {Values::kSprinkled, Values::kRandomBits, Values::kRelu}) {
      const std::vector<std::byte> elements = Make(dtype, values, 10000);
      for (const Layout& layout : layouts) {
        std::vector<std::int64_t> strides = layout.strides;
        for (std::int64_t& stride : strides) stride *= item;
        const TensorView view = ViewOf(elements.data() + layout.first * item,
                                       dtype, layout.shape, strides);
        const std::string what =
            std::string(DTypeName(dtype)) + ", " + layout.name;
        Check(view, -0.9, 0.9, what);
        Check(view, -3, 3, what);
      }
    }
  }
}

TDBG_TEST(BoundsThatNoFloatHasAreComparedAsDoubles) {
  const float near[] = {0.1F, std::nextafterf(0.1F, 0), -0.1F, 1e30F,
                        std::numeric_limits<float>::infinity()};
  const std::int64_t shape[] = {5, 1};
  const TensorView view = ViewOf(reinterpret_cast<const std::byte*>(near),
                                 DType::kFloat32, shape, {});
  for (const double bound : {0.1, 0.0999999999, 1e39, 1e300,
                             std::numeric_limits<double>::infinity()}) {
    Check(view, -bound, bound, std::to_string(bound));
  }
}

TDBG_TEST(MisalignedElementsAreCounted) {
  const std::vector<std::byte> elements =
      Make(DType::kFloat32, Values::kNormal, 600);
  std::vector<std::byte> room(elements.size() + 1);
  std::copy(elements.begin(), elements.end(), room.begin() + 1);
  const std::int64_t shape[] = {20, 30};
  Check(ViewOf(room.data() + 1, DType::kFloat32, shape, {}), -1, 1, "odd");
}

TDBG_TEST(CountsAreAddedToWhatIsThere) {
  const float x[] = {1, -1};
  const std::int64_t shape[] = {1, 2};
  std::vector<UnitCounts> units(2, UnitCounts{10, 20, 30});
  CountUnits(
      ViewOf(reinterpret_cast<const std::byte*>(x), DType::kFloat32, shape, {}),
      1, -0.5, 0.5, units);
  EXPECT_EQ(units[0].active, 11U);
  EXPECT_EQ(units[1].active, 10U);
  EXPECT_EQ(units[1].out_of_range, 21U);
  EXPECT_EQ(units[1].count, 31U);
}

TDBG_TEST(AnEmptyTensorCountsNothing) {
  const std::int64_t shape[] = {0, 3};
  std::vector<UnitCounts> units(3);
  CountUnits(ViewOf(nullptr, DType::kFloat32, shape, {}), 1, 0, 0, units);
  EXPECT_EQ(units[2].count, 0U);
}

TDBG_TEST(UnitsAreChannelsWhereThereAreSomeElseTheLastDimension) {
  EXPECT_EQ(UnitAxis(1), 0U);
  EXPECT_EQ(UnitAxis(2), 1U);
  EXPECT_EQ(UnitAxis(3), 1U);
  EXPECT_EQ(UnitAxis(4), 1U);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

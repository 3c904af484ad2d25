// Hashes of rows: short and long ones, of any layout.

#include "tensor/row_hash.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/xxhash64.h"
#include "testing.h"

namespace tdbg {
namespace {

struct Floats {
  explicit Floats(std::vector<std::int64_t> extents) : shape(extents) {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    values.resize(static_cast<std::size_t>(n));
    std::iota(values.begin(), values.end(), 1.0F);
  }
  [[nodiscard]] TensorView view() const {
    return {.data = values.data(),
            .dtype = DType::kFloat32,
            .item_size = 4,
            .shape = shape,
            .strides = {}};
  }
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

std::vector<std::uint64_t> RowsOf(const TensorView& view, std::uint64_t n) {
  std::vector<std::uint64_t> hashes;
  HashRows(view, n, &hashes);
  return hashes;
}

TDBG_TEST(AShortRowIsHashedWhole) {
  const Floats floats({3, 5});
  const std::vector<std::uint64_t> hashes = RowsOf(floats.view(), 3);
  EXPECT_EQ(hashes.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(hashes[i], XxHash64(&floats.values[5 * i], 20));
  }
}

TDBG_TEST(RowsAreCutFromTheFirstDimension) {
  const Floats tokens({12});
  const std::vector<std::uint64_t> hashes = RowsOf(tokens.view(), 3);
  EXPECT_EQ(hashes.size(), 3U);
  EXPECT_EQ(hashes[1], XxHash64(&tokens.values[4], 16));
}

TDBG_TEST(ATransposedTensorHasTheHashesOfItsCopy) {
  // 4 x 3 of 3 x 4, short and long rows.
  for (const std::int64_t width : {3, 2000}) {
    const Floats source({width, 4});
    const std::array<std::int64_t, 2> shape = {4, width};
    const std::array<std::int64_t, 2> strides = {4, 16};
    TensorView turned = source.view();
    turned.shape = shape;
    turned.strides = strides;
    Floats copy({4, width});
    CopyContiguous(turned, reinterpret_cast<std::byte*>(copy.values.data()));
    EXPECT_EQ(RowsOf(turned, 4), RowsOf(copy.view(), 4));
  }
}

TDBG_TEST(ALongRowIsHashedByBlocksFromFirstToLast) {
  Floats floats({2, 1000});
  const std::vector<std::uint64_t> before = RowsOf(floats.view(), 2);
  floats.values[1999] += 1.0F;  // The last element of the second row.
  const std::vector<std::uint64_t> last = RowsOf(floats.view(), 2);
  EXPECT_EQ(last[0], before[0]);
  EXPECT_TRUE(last[1] != before[1]);
  floats.values[0] += 1.0F;
  EXPECT_TRUE(RowsOf(floats.view(), 2)[0] != before[0]);
}

TDBG_TEST(RowsBeyondTheBoundAreLeftOut) {
  EXPECT_EQ(HashedRows(5000, 4), kMostRowHashes);
  EXPECT_EQ(HashedRows(64, 1 << 20), 64U);
  EXPECT_EQ(HashedRows(500, 1 << 20), kMostHashedBytes / kWholeRow);
  EXPECT_EQ(HashedRows(7, 0), 7U);
}

TDBG_TEST(RowsOfFewDifferentElementsAreNotVaried) {
  Floats floats({3, 8});
  EXPECT_EQ(CountVaried(floats.view(), 3, 3), 3U);
  for (std::size_t i = 0; i < 8; ++i) floats.values[i] = i == 3 ? 1.0F : 0.0F;
  EXPECT_EQ(CountVaried(floats.view(), 3, 3), 2U);
  EXPECT_EQ(CountVaried(floats.view(), 3, 1), 0U);
  EXPECT_EQ(CountVaried(Floats({3, 1}).view(), 3, 3), 0U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

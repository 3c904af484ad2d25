// Layouts of tensors, and the table of element types.

#include "tensor/tensor_view.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "testing.h"

namespace {

using namespace tdbg;  // NOLINT: a test.

TensorView ViewOf(const void* data, std::span<const std::int64_t> shape,
                  std::span<const std::int64_t> strides) {
  TensorView view;
  view.data = data;
  view.dtype = DType::kInt32;
  view.item_size = 4;
  view.shape = shape;
  view.strides = strides;
  return view;
}

std::vector<std::int32_t> Iota(std::size_t n) {
  std::vector<std::int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<std::int32_t> Copy(const TensorView& view) {
  std::vector<std::int32_t> copy(view.count());
  CopyContiguous(view, reinterpret_cast<std::byte*>(copy.data()));
  return copy;
}

TDBG_TEST(AScalarHasOneElementAndIsContiguous) {
  const auto values = Iota(1);
  const TensorView view = ViewOf(values.data(), {}, {});
  EXPECT_EQ(view.count(), 1U);
  EXPECT_EQ(view.n_bytes(), 4U);
  EXPECT_TRUE(IsContiguous(view));
  EXPECT_TRUE(Copy(view) == values);
}

TDBG_TEST(AnExtentOfZeroMakesATensorEmptyAndContiguous) {
  const std::int64_t shape[] = {3, 0, 2};
  const std::int64_t strides[] = {77, -5, 9};
  const TensorView view = ViewOf(nullptr, shape, strides);
  EXPECT_EQ(view.count(), 0U);
  EXPECT_TRUE(IsContiguous(view));
  EXPECT_TRUE(Copy(view).empty());
}

TDBG_TEST(StridesOfDimensionsOfExtentOneDoNotMatter) {
  const std::int64_t shape[] = {1, 3, 1};
  const std::int64_t strides[] = {-99, 4, 1000};
  EXPECT_TRUE(IsContiguous(ViewOf(nullptr, shape, strides)));
}

TDBG_TEST(OtherStridesAreNotContiguous) {
  const std::int64_t shape[] = {2, 3};
  for (const std::vector<std::int64_t>& strides :
       {std::vector<std::int64_t>{4, 8}, {0, 4}, {-12, 4}, {16, 4}}) {
    EXPECT_FALSE(IsContiguous(ViewOf(nullptr, shape, strides)));
  }
}

TDBG_TEST(ATransposedTensorIsCopiedInCOrder) {
  const auto values = Iota(6);
  const std::int64_t shape[] = {3, 2};
  const std::int64_t strides[] = {4, 12};
  const std::vector<std::int32_t> expected = {0, 3, 1, 4, 2, 5};
  EXPECT_TRUE(Copy(ViewOf(values.data(), shape, strides)) == expected);
}

TDBG_TEST(RowsWithGapsAreCopiedWithoutThem) {
  const auto values = Iota(12);
  const std::int64_t shape[] = {3, 2};
  const std::int64_t strides[] = {16, 4};
  const std::vector<std::int32_t> expected = {0, 1, 4, 5, 8, 9};
  EXPECT_TRUE(Copy(ViewOf(values.data(), shape, strides)) == expected);
}

TDBG_TEST(NegativeAndZeroStridesAreFollowed) {
  const auto values = Iota(4);
  const std::int64_t shape[] = {2, 3};
  const std::int64_t strides[] = {0, -4};
  const std::vector<std::int32_t> expected = {3, 2, 1, 3, 2, 1};
  EXPECT_TRUE(Copy(ViewOf(values.data() + 3, shape, strides)) == expected);
}

TDBG_TEST(FourDimensionsAreCopiedInCOrder) {
  const auto values = Iota(120);
  const std::int64_t shape[] = {5, 4, 3, 2};
  const std::int64_t strides[] = {4, 20, 80, 240};  // Reversed.
  const auto copy = Copy(ViewOf(values.data(), shape, strides));
  std::size_t at = 0;
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 3; ++k) {
        for (int l = 0; l < 2; ++l) {
          EXPECT_EQ(copy[at++], i + 5 * j + 20 * k + 60 * l);
        }
      }
    }
  }
}

// The codes are on disk: a change here is a change of the format.
TDBG_TEST(CodesNamesAndSizesOfElementTypesArePinned) {
  struct Row {
    DType dtype;
    int code;
    const char* name;
    std::uint32_t item_size;
  };
  const Row rows[] = {
      {DType::kBool, 1, "bool", 1},
      {DType::kUInt8, 2, "uint8", 1},
      {DType::kInt8, 3, "int8", 1},
      {DType::kUInt16, 4, "uint16", 2},
      {DType::kInt16, 5, "int16", 2},
      {DType::kUInt32, 6, "uint32", 4},
      {DType::kInt32, 7, "int32", 4},
      {DType::kUInt64, 8, "uint64", 8},
      {DType::kInt64, 9, "int64", 8},
      {DType::kFloat16, 16, "float16", 2},
      {DType::kFloat32, 17, "float32", 4},
      {DType::kFloat64, 18, "float64", 8},
      {DType::kBFloat16, 19, "bfloat16", 2},
      {DType::kFloat8E4M3Fn, 20, "float8_e4m3fn", 1},
      {DType::kFloat8E5M2, 21, "float8_e5m2", 1},
      {DType::kFloat8E4M3FnUz, 22, "float8_e4m3fnuz", 1},
      {DType::kFloat8E5M2FnUz, 23, "float8_e5m2fnuz", 1},
      {DType::kFloat8E8M0Fnu, 24, "float8_e8m0fnu", 1},
      {DType::kComplex64, 32, "complex64", 8},
      {DType::kComplex128, 33, "complex128", 16},
      {DType::kNumpy, 64, "", 0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.code);
    EXPECT_EQ(std::string(DTypeName(row.dtype)), row.name);
    EXPECT_EQ(ItemSize(row.dtype), row.item_size);
    EXPECT_TRUE(IsKnownDType(static_cast<std::uint16_t>(row.code)));
    EXPECT_EQ(HasStatistics(row.dtype), row.code < 32);
  }
  int n_known = 0;
  for (int code = 0; code < 65536; ++code) {
    n_known += IsKnownDType(static_cast<std::uint16_t>(code)) ? 1 : 0;
  }
  EXPECT_EQ(n_known, 21);
  EXPECT_FALSE(HasStatistics(DType::kInvalid));
}

TDBG_TEST(ExtremesOfIntegersAreIntegers) {
  EXPECT_TRUE(ExtremeClassOf(DType::kInt8) == ExtremeClass::kInt64);
  EXPECT_TRUE(ExtremeClassOf(DType::kInt64) == ExtremeClass::kInt64);
  EXPECT_TRUE(ExtremeClassOf(DType::kBool) == ExtremeClass::kUInt64);
  EXPECT_TRUE(ExtremeClassOf(DType::kUInt64) == ExtremeClass::kUInt64);
  EXPECT_TRUE(ExtremeClassOf(DType::kBFloat16) == ExtremeClass::kFloat64);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

// Tables of many tensors: what a row depends on, and what it does not.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda_launch.h"
#include "expect_row.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

bool SameBits(const cuda::DeviceRow& a, const cuda::DeviceRow& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// 600 tensors of all types; every 50th has several tiles.
struct Model {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<DType> dtypes;

  Model() {
    for (std::size_t i = 0; i < 600; ++i) {
      const DType dtype = kDTypes[i % std::size(kDTypes)];
      const std::size_t n = i % 50 == 7 ? 40001 + i : 1 + i * 7 % 400;
      dtypes.push_back(dtype);
      tensors.push_back(Make(dtype, Values::kNormal, n));
    }
  }
  [[nodiscard]] std::size_t count(std::size_t i) const {
    return tensors[i].size() / ItemSize(dtypes[i]);
  }
  void AddTo(CudaTable* table, std::size_t i) const {
    table->Add(tensors[i].data(), count(i), dtypes[i]);
  }
};

TDBG_TEST(SixHundredTensorsInOneLaunch) {
  const Model model;
  CudaTable table;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) model.AddTo(&table, i);
  const std::vector<Summary> rows = table.Summaries(4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ExpectRow(rows[i], ReferenceRow(model.tensors[i], model.dtypes[i]),
              model.dtypes[i], "tensor " + std::to_string(i));
  }
}

TDBG_TEST(NeitherTheGridNorTheOtherTensorsChangeABit) {
  const Model model;
  CudaTable table;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) model.AddTo(&table, i);
  const std::vector<cuda::DeviceRow> rows = table.Run(1);
  for (const unsigned n_blocks : {2U, 5U}) {
    cuda_emulator::SetSeed(n_blocks);
    const std::vector<cuda::DeviceRow> others = table.Run(n_blocks);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(SameBits(rows[i], others[i]));
    }
  }
  for (std::size_t i = 0; i < rows.size(); i += 25) {
    CudaTable alone;
    model.AddTo(&alone, i + 7);
    EXPECT_TRUE(SameBits(alone.Run(3)[0], rows[i + 7]));
  }
}

TDBG_TEST(ATableInTheParametersGivesTheSameRows) {
  const Model model;
  CudaTable table;
  for (std::size_t i = 0; i < cuda::kInlineEntries; ++i) model.AddTo(&table, i);
  const std::vector<cuda::DeviceRow> rows = table.Run(3);
  const std::vector<cuda::DeviceRow> others = table.Run(3, true);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(SameBits(rows[i], others[i]));
  }
}

// More tiles than two levels of merging take: groups of groups of groups.
TDBG_TEST(ManyTilesInWhateverOrderGiveTheSameBits) {
  const std::size_t n = 8400000;  // 1026 tiles of 32 KiB.
  const std::vector<std::byte> elements =
      Make(DType::kFloat32, Values::kNormal, n);
  CudaTable table;
  table.Add(elements.data(), n, DType::kFloat32);
  EXPECT_EQ(table.n_tiles(), 1026U);
  const std::vector<cuda::DeviceRow> rows = table.Run(1);
  cuda_emulator::SetSeed(7);
  EXPECT_TRUE(SameBits(rows[0], table.Run(6)[0]));
  ExpectRow(cuda::ToSummary(rows[0], n, DType::kFloat32),
            ReferenceRow(elements, DType::kFloat32), DType::kFloat32, "many");
}

// Strides in bytes, negative ones, too; the same bits as a contiguous copy.
TDBG_TEST(StridedTensorsAreLikeTheirCopies) {
  for (const DType dtype : kDTypes) {
    const auto item = static_cast<std::int64_t>(ItemSize(dtype));
    const std::vector<std::byte> elements =
        Make(dtype, Values::kNormal, 30 * 40 * 50);
    const std::byte* last = elements.data() + elements.size() - item;
    const struct {
      const std::byte* first;
      std::vector<std::int64_t> extents;
      std::vector<std::int64_t> strides;
    } kViews[] = {
        {elements.data(), {50, 40, 30}, {item, 50 * item, 2000 * item}},
        {elements.data(), {30, 20, 50}, {2000 * item, 100 * item, item}},
        {elements.data(),
         {30, 2, 7, 25},
         {2000 * item, 1000 * item, 100 * item, 2 * item}},
        {last, {30, 40, 50}, {-2000 * item, -50 * item, -item}},
        {elements.data(), {30, 10, 5}, {2000 * item, 0, item}},
    };
    for (const auto& view : kViews) {
      const TensorView of =
          ViewOf(view.first, dtype, view.extents, view.strides);
      const std::uint64_t n = of.count();
      std::vector<std::byte> copy(n * ItemSize(dtype));
      CopyContiguous(of, copy.data());
      CudaTable table;
      cuda::TensorEntry& entry = table.Add(view.first, n, dtype);
      entry.n_dims = static_cast<std::uint32_t>(view.extents.size());
      std::ranges::copy(view.extents, entry.extents);
      std::ranges::copy(view.strides, entry.strides);
      table.Add(copy.data(), n, dtype);
      const std::vector<cuda::DeviceRow> rows = table.Run(2);
      EXPECT_TRUE(SameBits(rows[0], rows[1]));
    }
  }
}

TDBG_TEST(ScaleAndDivisorMultiplyTheRow) {
  const std::vector<std::byte> elements =
      Make(DType::kFloat32, Values::kSprinkled, 5000);
  const float divisor = -1024;
  CudaTable table;
  cuda::TensorEntry& entry = table.Add(elements.data(), 5000, DType::kFloat32);
  entry.scale = 3;
  entry.divisor_address = reinterpret_cast<std::uintptr_t>(&divisor);
  const Summary row = table.Summaries(1)[0];
  const std::int64_t shape[] = {5000};
  ExpectRow(row,
            Reduce(ViewOf(elements.data(), DType::kFloat32, shape),
                   {.scale = -3.0 / 1024, .precise = true}),
            DType::kFloat32, "scaled");
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

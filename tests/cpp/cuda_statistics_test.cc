// The statistics kernel, run by the emulator: every element type, kind of
// values, length and alignment against two plain passes in long double.

#include <cstring>
#include <string>
#include <vector>

#include "cuda_launch.h"
#include "expect_row.h"
#include "reduce_reference.h"
#include "reduce_views.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

std::string Described(DType dtype, Values values, std::size_t n) {
  return std::string(DTypeName(dtype)) + ", " + ValuesName(values) +
         ", n=" + std::to_string(n);
}

struct Tensor {
  DType dtype;
  Values values;
  std::size_t n;
  std::vector<std::byte> elements;
  std::size_t offset = 0;  // Of the first element, from a multiple of 16.
};

Tensor MakeTensor(DType dtype, Values values, std::size_t n,
                  std::size_t offset = 0) {
  const std::vector<std::byte> elements = Make(dtype, values, n);
  Tensor tensor{dtype, values, n,
                std::vector<std::byte>(elements.size() + offset + 16), offset};
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.elements.data());
  tensor.offset += (16 - address % 16) % 16;
  tensor.elements.resize(tensor.offset + elements.size());
  if (n > 0) {
    std::memcpy(tensor.elements.data() + tensor.offset, elements.data(),
                elements.size());
  }
  return tensor;
}

// All tensors in one launch.
void CheckAll(const std::vector<Tensor>& tensors, unsigned n_blocks) {
  CudaTable table;
  for (const Tensor& t : tensors) {
    table.Add(t.elements.data() + t.offset, t.n, t.dtype);
  }
  const std::vector<Summary> rows = table.Summaries(n_blocks);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    const std::span<const std::byte> elements(t.elements.data() + t.offset,
                                              t.n * ItemSize(t.dtype));
    ExpectRow(rows[i], ReferenceRow(elements, t.dtype), t.dtype,
              Described(t.dtype, t.values, t.n));
  }
}

TDBG_TEST(EveryKindOfValuesAgreesWithTwoPassesInLongDouble) {
  for (const DType dtype : kDTypes) {
    std::vector<Tensor> tensors;
    for (int values = 0; values < kNumberOfValues; ++values) {
      for (const std::size_t n : {0, 1, 7, 16, 33, 129, 1000, 4097, 10007}) {
        tensors.push_back(MakeTensor(dtype, static_cast<Values>(values), n));
      }
    }
    CheckAll(tensors, 3);
  }
}

// Lengths about 16 bytes, a warp's and a block's share, and tiles.
TDBG_TEST(EveryLengthAboutABorderAgrees) {
  for (const DType dtype : kDTypes) {
    const std::size_t item = ItemSize(dtype);
    std::vector<Tensor> tensors;
    for (const std::size_t bytes : {16U, 512U, 4096U, 8192U, 16384U, 49152U}) {
      const std::size_t n = bytes / item;
      for (const std::size_t length : {n - 1, n, n + 1, n + 16 / item + 1}) {
        tensors.push_back(MakeTensor(dtype, Values::kNormal, length));
        tensors.push_back(MakeTensor(dtype, Values::kSprinkled, length));
      }
    }
    CheckAll(tensors, 2);
  }
}

// Each of the three sizes of tiles, and more tiles than are merged at once.
TDBG_TEST(TensorsOfManyTilesAgree) {
  const struct {
    DType dtype;
    std::size_t n;
  } kTensors[] = {{DType::kBFloat16, 524287}, {DType::kBFloat16, 524288},
                  {DType::kFloat32, 1200003}, {DType::kUInt8, 3000001},
                  {DType::kFloat64, 540001},  {DType::kInt64, 300000}};
  for (const auto& [dtype, n] : kTensors) {
    CheckAll({MakeTensor(dtype, Values::kNormal, n)}, 3);
  }
}

// Wherever it begins: the lanes' shares are the same, so no bit changes.
TDBG_TEST(AlignmentChangesNoBit) {
  for (const DType dtype : kDTypes) {
    const std::size_t n = 9001;
    Summary first;
    for (std::size_t off = 0; off < 16; off += ItemSize(dtype)) {
      const Tensor t = MakeTensor(dtype, Values::kNormal, n, off);
      const Summary s = CudaReduce(t.elements.data() + t.offset, n, dtype);
      if (off == 0) first = s;
      EXPECT_EQ(std::memcmp(&s, &first, sizeof(s)), 0);
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

// Statistics of tensors by the CUDA kernels, run by the emulator.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda_emulator/emulator.h"
#include "reducers/cuda/device_rows.h"
#include "reducers/cuda/kernel_abi.h"
#include "testing.h"

namespace tdbg::testing {

// A table of tensors, and one launch over it.
class CudaTable {
 public:
  // `data` is aligned to the element.
  cuda::TensorEntry& Add(const void* data, std::uint64_t count, DType dtype) {
    cuda::TensorEntry entry{};
    entry.address = reinterpret_cast<std::uintptr_t>(data);
    entry.count = count;
    entry.scale = 1.0;
    entry.first_tile = n_tiles_;
    entry.row = static_cast<std::uint32_t>(entries_.size());
    entry.dtype = static_cast<std::uint32_t>(dtype);
    entries_.push_back(entry);
    n_tiles_ +=
        static_cast<std::uint32_t>(cuda::TileCount(count, ItemSize(dtype)));
    return entries_.back();
  }

  [[nodiscard]] std::uint32_t n_tiles() const { return n_tiles_; }

  // Rows of all tensors, in order.
  std::vector<cuda::DeviceRow> Run(unsigned n_blocks, bool is_inline = false) {
    auto n_entries = static_cast<std::uint32_t>(entries_.size());
    std::vector<cuda::DeviceRow> rows(n_entries);
    std::vector<cuda::DeviceRow> partials(n_tiles_);
    std::vector<std::uint32_t> counters(
        cuda::CounterCount(n_entries, n_tiles_));
    const cuda::TensorEntry* table = entries_.data();
    cuda::InlineTable inline_table{};
    if (is_inline) {
      for (std::uint32_t i = 0; i < n_entries; ++i) {
        inline_table.entries[i] = entries_[i];
      }
    }
    cuda::DeviceRow* partials_data = partials.data();
    std::uint32_t* counters_data = counters.data();
    cuda::DeviceRow* rows_data = rows.data();
    void* args[] = {is_inline ? static_cast<void*>(&inline_table)
                              : static_cast<void*>(&table),
                    &n_entries,
                    &n_tiles_,
                    &partials_data,
                    &counters_data,
                    &rows_data};
    EXPECT_TRUE(cuda_emulator::RunKernel(
        is_inline ? cuda::kInlineStatisticsKernel : cuda::kStatisticsKernel,
        {n_blocks}, {cuda::kStatisticsThreads}, 0, args));
    for (const std::uint32_t counter : counters) EXPECT_EQ(counter, 0U);
    return rows;
  }

  std::vector<Summary> Summaries(unsigned n_blocks) {
    const std::vector<cuda::DeviceRow> rows = Run(n_blocks);
    std::vector<Summary> summaries;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      summaries.push_back(cuda::ToSummary(
          rows[i], entries_[i].count, static_cast<DType>(entries_[i].dtype)));
    }
    return summaries;
  }

 private:
  std::vector<cuda::TensorEntry> entries_;
  std::uint32_t n_tiles_ = 0;
};

// The row of one tensor.
inline Summary CudaReduce(const void* data, std::uint64_t count, DType dtype,
                          unsigned n_blocks = 2) {
  CudaTable table;
  table.Add(data, count, dtype);
  return table.Summaries(n_blocks)[0];
}

}  // namespace tdbg::testing

// The kernels: cpp/reducers/cuda/README.md.

#include <cstdint>

#include "reducers/cuda/bins-inl.h"
#include "reducers/cuda/kernel_abi.h"
#include "reducers/cuda/statistics-inl.h"
#include "reducers/cuda/units-inl.h"

namespace tdbg::cuda {

// Five blocks in a multiprocessor: 96 registers a thread.
extern "C" __global__ void __launch_bounds__(kStatisticsThreads, 5)
    tdbg_statistics(const TensorEntry* table, std::uint32_t n_entries,
                    std::uint32_t n_tiles, DeviceRow* partials,
                    std::uint32_t* counters, DeviceRow* rows) {
  TakeTiles(table, n_entries, n_tiles, partials, counters, rows);
}

extern "C" __global__ void __launch_bounds__(kStatisticsThreads, 5)
    tdbg_statistics_inline(const __grid_constant__ InlineTable table,
                           std::uint32_t n_entries, std::uint32_t n_tiles,
                           DeviceRow* partials, std::uint32_t* counters,
                           DeviceRow* rows) {
  TakeTiles(table.entries, n_entries, n_tiles, partials, counters, rows);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 4)
    tdbg_unit_counts(const __grid_constant__ UnitEntry entry) {
  CountUnitsOfEntry(entry);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 4)
    tdbg_histogram(const __grid_constant__ BinEntry entry) {
  CountBinsOfEntry(entry);
}

}  // namespace tdbg::cuda

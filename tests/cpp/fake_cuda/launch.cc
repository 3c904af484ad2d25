// Launches of tdbg's kernels: what they may touch is checked first, and they
// run in the emulator when the stream comes to them.

#include <cstring>

#include "cuda_emulator/emulator.h"
#include "fake_cuda/state.h"
#include "reducers/cuda/kernel_abi.h"

namespace fakecuda {
namespace {

namespace abi = tdbg::cuda;

// The parameters of each kernel, by value.
template <typename Table>
struct StatisticsParameters {
  Table table;
  std::uint32_t n_entries;
  std::uint32_t n_tiles;
  std::uint64_t partials;
  std::uint64_t counters;
  std::uint64_t rows;
};

template <typename T>
T Read(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename Table>
StatisticsParameters<Table> ReadParameters(void** a) {
  return {Read<Table>(a[0]),         Read<std::uint32_t>(a[1]),
          Read<std::uint32_t>(a[2]), Read<std::uint64_t>(a[3]),
          Read<std::uint64_t>(a[4]), Read<std::uint64_t>(a[5])};
}

template <typename Table>
bool Run(const std::string& name, unsigned grid, unsigned block,
         unsigned shared_bytes, StatisticsParameters<Table>* p) {
  void* arguments[] = {&p->table,    &p->n_entries, &p->n_tiles,
                       &p->partials, &p->counters,  &p->rows};
  return tdbg::cuda_emulator::RunKernel(name, {grid}, {block}, shared_bytes,
                                        arguments);
}

// Whether all elements lie in memory of a device.
bool IsAllocated(std::uint64_t address, std::uint64_t count,
                 std::uint32_t dtype, std::uint32_t n_dims,
                 const std::int64_t* extents, const std::int64_t* strides) {
  const State& state = State::Get();
  const std::uint64_t item = tdbg::ItemSize(static_cast<tdbg::DType>(dtype));
  if (count == 0) return true;
  std::uint64_t first = address;
  std::uint64_t end = address + (n_dims == 0 ? count * item : item);
  for (std::uint32_t d = 0; d < n_dims; ++d) {
    const std::int64_t reach = (extents[d] - 1) * strides[d];
    (reach < 0 ? first : end) += static_cast<std::uint64_t>(reach);
  }
  return State::Contains(state.device_memory, first, end - first);
}

bool AreAllocated(const abi::TensorEntry* entries, std::uint32_t n,
                  std::uint64_t rows) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  for (std::uint32_t i = 0; i < n; ++i) {
    const abi::TensorEntry& e = entries[i];
    if (!IsAllocated(e.address, e.count, e.dtype, e.n_dims, e.extents,
                     e.strides) ||
        !State::Contains(state.device_memory,
                         rows + e.row * sizeof(abi::DeviceRow),
                         sizeof(abi::DeviceRow))) {
      return false;
    }
  }
  return true;
}

void Fault(CUctx_st* context) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  state.Break(context, 700);  // CUDA_ERROR_ILLEGAL_ADDRESS
}

template <typename Entry>
Operation LaunchOfOne(CUfunc_st* function, unsigned grid, unsigned block,
                      const Entry& entry, std::uint64_t count) {
  return [=, name = function->name, context = function->context]() {
    Entry copy = entry;
    bool is_allocated = false;
    {
      State& state = State::Get();
      const std::unique_lock<std::mutex> lock(state.mutex);
      is_allocated = IsAllocated(copy.address, count, copy.dtype, copy.n_dims,
                                 copy.extents, copy.strides);
    }
    void* arguments[] = {&copy};
    if (!is_allocated ||
        !tdbg::cuda_emulator::RunKernel(name, {grid}, {block}, 0, arguments)) {
      Fault(context);
    }
  };
}

}  // namespace

Operation LaunchOf(CUfunc_st* function, unsigned grid, unsigned block,
                   unsigned shared_bytes, void** arguments) {
  const std::string name = function->name;
  CUctx_st* context = function->context;
  if (name == abi::kStatisticsKernel) {
    return
        [=, p = ReadParameters<const abi::TensorEntry*>(arguments)]() mutable {
          if (!AreAllocated(p.table, p.n_entries, p.rows) ||
              !Run(name, grid, block, shared_bytes, &p)) {
            Fault(context);
          }
        };
  }
  if (name == abi::kInlineStatisticsKernel) {
    return [=, p = ReadParameters<abi::InlineTable>(arguments)]() mutable {
      if (!AreAllocated(p.table.entries, p.n_entries, p.rows) ||
          !Run(name, grid, block, shared_bytes, &p)) {
        Fault(context);
      }
    };
  }
  if (name == abi::kUnitCountsKernel) {
    const auto entry = Read<abi::UnitEntry>(arguments[0]);
    return LaunchOfOne(function, grid, block, entry,
                       entry.n_dims == 0 ? 1 : entry.count_per_unit);
  }
  if (name == abi::kHistogramKernel) {
    const auto entry = Read<abi::BinEntry>(arguments[0]);
    return LaunchOfOne(function, grid, block, entry, entry.count);
  }
  return {};
}

}  // namespace fakecuda

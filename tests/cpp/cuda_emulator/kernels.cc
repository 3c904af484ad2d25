#include "cuda_emulator/kernels.h"

#include <cstddef>
#include <utility>

#include "cuda_emulator/intrinsics.h"
// The very source, after CUDA's names.
#include "reducers/cuda/kernels.cu"

namespace tdbg::cuda_emulator {
namespace {

template <auto kKernel>
struct Call;
template <typename... Args, void (*kKernel)(Args...)>
struct Call<kKernel> {
  static void With(void** args) {
    With(args, std::index_sequence_for<Args...>());
  }
  template <std::size_t... kIndex>
  static void With(void** args, std::index_sequence<kIndex...>) {
    kKernel(*static_cast<std::remove_cvref_t<Args>*>(args[kIndex])...);
  }
};

}  // namespace

Invoke KernelCalled(std::string_view name) {
  if (name == cuda::kStatisticsKernel)
    return &Call<cuda::tdbg_statistics>::With;
  if (name == cuda::kInlineStatisticsKernel) {
    return &Call<cuda::tdbg_statistics_inline>::With;
  }
  if (name == cuda::kUnitCountsKernel) {
    return &Call<cuda::tdbg_unit_counts>::With;
  }
  if (name == cuda::kHistogramKernel) return &Call<cuda::tdbg_histogram>::With;
  return nullptr;
}

}  // namespace tdbg::cuda_emulator

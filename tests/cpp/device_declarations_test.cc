// The declarations of reducers/cuda/driver.h are those of CUDA's own header: a
// wrong one would be found on a GPU only.  Compiled where that header is.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "reducers/cuda/driver.h"
#include "testing.h"

namespace tdbg::cuda {
namespace {

// Handles and enumerations have names of their own here: what is passed counts.
template <typename Ours, typename Theirs>
constexpr bool kSameArgument =
    sizeof(Ours) == sizeof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
constexpr bool kSame = false;
template <typename... Ours, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
constexpr bool kSame<int (*)(Ours...), CUresult (*)(Theirs...)> =
    (kSameArgument<Ours, Theirs> && ...);

// The header has the newest of each function under its plain name, and this one
// for its own use only.
using cuStreamGetCaptureInfo_v2_t = PFN_cuStreamGetCaptureInfo_v11030;
static_assert(kSame<decltype(Driver::stream_get_capture_info),
                    cuStreamGetCaptureInfo_v2_t>);
constexpr CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*,
                                             cuuint64_t*, CUgraph*,
                                             const CUgraphNode**,
                                             std::size_t*) {
  return CUDA_SUCCESS;
}

#define TDBG_CUDA_CHECK(symbol, member, parameters) \
  static_assert(kSame<decltype(Driver::member), decltype(&symbol)>, #symbol);
TDBG_CUDA_FUNCTIONS(TDBG_CUDA_CHECK)
#undef TDBG_CUDA_CHECK

template <auto kOurs, auto kTheirs>
constexpr bool kEqual = static_cast<long>(kOurs) == static_cast<long>(kTheirs);

static_assert(kEqual<kSuccess, CUDA_SUCCESS>);
static_assert(kEqual<kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE>);
static_assert(kEqual<kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY>);
static_assert(kEqual<kErrorNoDevice, CUDA_ERROR_NO_DEVICE>);
static_assert(kEqual<kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE>);
static_assert(kEqual<kErrorNotFound, CUDA_ERROR_NOT_FOUND>);
static_assert(kEqual<kErrorNotReady, CUDA_ERROR_NOT_READY>);
static_assert(kEqual<kAttributeMultiprocessorCount,
                     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT>);
static_assert(kEqual<kStreamNonBlocking, CU_STREAM_NON_BLOCKING>);
static_assert(kEqual<kEventDisableTiming, CU_EVENT_DISABLE_TIMING>);
static_assert(kEqual<kHostPortable, CU_MEMHOSTALLOC_PORTABLE>);
static_assert(kEqual<kHostPortable, CU_MEMHOSTREGISTER_PORTABLE>);
static_assert(kEqual<kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE>);
static_assert(kEqual<kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE>);
static_assert(kEqual<kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED>);
static_assert(kEqual<kUserObjectNoSync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC>);
static_assert(kEqual<kUserObjectMove, CU_GRAPH_USER_OBJECT_MOVE>);

}  // namespace
}  // namespace tdbg::cuda

TDBG_TEST(HandlesThatAreNumbersAreThoseOfTheHeader) {
  EXPECT_TRUE(static_cast<void*>(tdbg::cuda::PerThreadStream()) ==
              static_cast<void*>(CU_STREAM_PER_THREAD));
  EXPECT_TRUE(tdbg::cuda::StreamOf(CU_STREAM_LEGACY) == nullptr);
}

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

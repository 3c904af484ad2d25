// Loads that run ahead of the sums: into shared memory, across the end of a
// tile.
//
// What a thread loads only it reads, so no barrier is needed, and what is under
// way takes no register.  So memory stays busy while a warp finishes a tile,
// publishes its row and looks up the next.

#pragma once

#include <cstdint>

#include "reducers/cuda/device-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// Rows of 16 bytes for each lane that are summed together.
constexpr std::uint32_t kLotRows = 2;
constexpr std::uint32_t kLotBytes = kLotRows * kLanes * 16;
// Lots of a warp that are under way or wait to be summed.
constexpr std::uint32_t kLots = 4;

// Of a block.
struct LoadBuffer {
  Vec vecs[kLots][kLotRows][kStatisticsThreads];
};
static_assert(sizeof(LoadBuffer) <= 49152, "what there is without asking");

// The lots of a tile: a lane's first 16 bytes, at a multiple of 16.
struct Stretch {
  std::uint64_t address = 0;
  std::uint32_t n_lots = 0;
};

// 16 bytes into shared memory, some time later.
__device__ inline void BeginLoad(std::uint64_t address, Vec* to) {
#ifdef __CUDACC__
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared),
               "l"(address)
               : "memory");
#else
  *to = LoadVec(address);
#endif
}
// What was begun since the last call is one lot.
__device__ inline void EndLot() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all lots but the last kLots - 1 have come.
__device__ inline void WaitForLot() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kLots - 1) : "memory");
#endif
}

// Until all have.
__device__ inline void WaitForLots() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

// The calling thread's part of the lots of a warp, tile after tile: those of
// `own`, the tile that is summed, and of the one after it.  On entry to a tile
// its first kLots lots, or all, are under way.
class Loads {
 public:
  __device__ explicit Loads(LoadBuffer* buffer) : buffer_(buffer) {}

  // `own`, the next one until now, is summed now, and after it `next`.  To
  // begin with there is none, and the first one is the next.
  __device__ void Enter(const Stretch& own, const Stretch& next) {
    next_ = next;
#pragma unroll 1
    for (std::uint32_t lot = own.n_lots; lot < kLots; ++lot) {
      Load(own, lot, (at_ + lot) % kLots);
    }
  }

  // Row `k` of the lot that is next, after WaitForLot(); of the `lot`-th from
  // it on, after WaitForLots().
  [[nodiscard]] __device__ Vec Row(std::uint32_t k,
                                   std::uint32_t lot = 0) const {
    return buffer_->vecs[(at_ + lot) % kLots][k][threadIdx.x];
  }

  // That lot, the `lot`-th of the tile, was read.
  __device__ void Leave(const Stretch& own, std::uint32_t lot) {
    Load(own, lot + kLots, at_);
    at_ = (at_ + 1) % kLots;
  }

 private:
  // The `lot`-th from the beginning of `own` on.
  __device__ void Load(const Stretch& own, std::uint32_t lot,
                       std::uint32_t to) {
    const bool is_own = lot < own.n_lots;
    const std::uint32_t i = is_own ? lot : lot - own.n_lots;
    if (is_own || i < next_.n_lots) {
      const std::uint64_t address =
          (is_own ? own.address : next_.address) + i * kLotBytes;
#pragma unroll
      for (std::uint32_t k = 0; k < kLotRows; ++k) {
        BeginLoad(address + k * (kLanes * 16),
                  &buffer_->vecs[to][k][threadIdx.x]);
      }
    }
    EndLot();
  }

  LoadBuffer* buffer_;
  Stretch next_;
  std::uint32_t at_ = 0;  // Where the next lot to be taken is.
};

}  // namespace
}  // namespace tdbg::cuda

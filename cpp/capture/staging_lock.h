// StagingLock page-locks the writer's staging memory, once for all devices, so
// that a device can copy to it while nobody waits.
//
// Thread safety: all methods from any thread.

#pragma once

#include <cstddef>
#include <span>

#include "base/mutex.h"
#include "base/status.h"
#include "reducers/cuda/driver.h"

namespace tdbg {

class StagingLock {
 public:
  // Locks the memory, unless another user has; each success is followed by a
  // Release.  What failed is not tried again.
  // REQUIRES: a context is current; every call names the same memory.
  Status Acquire(const cuda::Driver& driver, std::span<std::byte> memory);
  // The last user's unlocks it.
  // REQUIRES: a context is current; no copy of the caller is under way.
  void Release(const cuda::Driver& driver);

 private:
  Mutex mutex_;
  int n_users_ TDBG_GUARDED_BY(mutex_) = 0;
  std::byte* locked_ TDBG_GUARDED_BY(mutex_) = nullptr;
  Status failure_ TDBG_GUARDED_BY(mutex_);
};

}  // namespace tdbg

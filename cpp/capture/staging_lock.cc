#include "capture/staging_lock.h"

#include "base/check.h"

namespace tdbg {

Status StagingLock::Acquire(const cuda::Driver& driver,
                            std::span<std::byte> memory) {
  MutexLock lock(mutex_);
  TDBG_DCHECK(locked_ == nullptr || locked_ == memory.data());
  if (locked_ == nullptr && failure_.ok()) {
    failure_ =
        driver.Check(driver.mem_host_register(memory.data(), memory.size(),
                                              cuda::kHostPortable),
                     "cuMemHostRegister");
    if (failure_.ok()) locked_ = memory.data();
  }
  if (failure_.ok()) ++n_users_;
  return failure_;
}

void StagingLock::Release(const cuda::Driver& driver) {
  MutexLock lock(mutex_);
  TDBG_DCHECK(n_users_ > 0);
  if (--n_users_ > 0 || locked_ == nullptr) return;
  // Tried twice: the memory is about to be unmapped.
  if (driver.mem_host_unregister(locked_) != cuda::kSuccess) {
    (void)driver.mem_host_unregister(locked_);
  }
  locked_ = nullptr;
}

}  // namespace tdbg

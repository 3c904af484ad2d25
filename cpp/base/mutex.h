// A mutex that clang's thread-safety analysis understands.
//
// Annotate what a mutex guards with TDBG_GUARDED_BY(mutex_); under clang with
// -Wthread-safety an access without the lock is then a compile error.  With
// other compilers the annotations vanish.

#pragma once

#include <mutex>

#if defined(__clang__)
#define TDBG_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TDBG_THREAD_ANNOTATION(x)
#endif

#define TDBG_CAPABILITY(x) TDBG_THREAD_ANNOTATION(capability(x))
#define TDBG_SCOPED_CAPABILITY TDBG_THREAD_ANNOTATION(scoped_lockable)
#define TDBG_GUARDED_BY(x) TDBG_THREAD_ANNOTATION(guarded_by(x))
#define TDBG_REQUIRES(...) \
  TDBG_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TDBG_ACQUIRE(...) \
  TDBG_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TDBG_RELEASE(...) \
  TDBG_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TDBG_EXCLUDES(...) TDBG_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace tdbg {

class TDBG_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TDBG_ACQUIRE() { mutex_.lock(); }
  void unlock() TDBG_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope; also what a condition_variable_any waits with.
class TDBG_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TDBG_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TDBG_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() TDBG_ACQUIRE() { mutex_.lock(); }
  void unlock() TDBG_RELEASE() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace tdbg

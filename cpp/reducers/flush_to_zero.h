// FlushToZeroOff makes subnormal numbers count while it lives.
//
// Trainings may turn them off for their threads (torch.set_flush_denormal);
// statistics must not depend on that.
//
// Thread safety: acts on the calling thread only.

#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tdbg {

class FlushToZeroOff {
 public:
  FlushToZeroOff() {
#if defined(__x86_64__)
    if ((before_ & kFlushBits) != 0) _mm_setcsr(before_ & ~kFlushBits);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if ((before_ & kFlushBits) != 0) Set(before_ & ~kFlushBits);
#endif
  }
  ~FlushToZeroOff() {
#if defined(__x86_64__)
    if ((before_ & kFlushBits) != 0) _mm_setcsr(before_);
#elif defined(__aarch64__)
    if ((before_ & kFlushBits) != 0) Set(before_);
#endif
  }
  FlushToZeroOff(const FlushToZeroOff&) = delete;
  FlushToZeroOff& operator=(const FlushToZeroOff&) = delete;

 private:
#if defined(__x86_64__)
  // FTZ (results) and DAZ (operands) of MXCSR.
  static constexpr unsigned kFlushBits = 0x8040U;
  const unsigned before_ = _mm_getcsr();
#elif defined(__aarch64__)
  // FZ of FPCR.
  static constexpr unsigned long kFlushBits = 1UL << 24;
  static void Set(unsigned long value) {
    asm volatile("msr fpcr, %0" : : "r"(value));
  }
  unsigned long before_ = 0;
#endif
};

}  // namespace tdbg

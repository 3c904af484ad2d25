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
    if (AreFlushed()) {
      before_ = Get();
      Set(before_ & ~kFlushBits);
    }
  }
  ~FlushToZeroOff() {
    if (before_ != 0) Set(before_);
  }
  FlushToZeroOff(const FlushToZeroOff&) = delete;
  FlushToZeroOff& operator=(const FlushToZeroOff&) = delete;

 private:
#if defined(__x86_64__)
  using Register = unsigned;
  // FTZ (results) and DAZ (operands) of MXCSR.
  static constexpr Register kFlushBits = 0x8040U;
  static Register Get() { return _mm_getcsr(); }
  static void Set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = unsigned long;
  // FZ of FPCR.
  static constexpr Register kFlushBits = 1UL << 24;
  static Register Get() {
    Register value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void Set(Register value) {
    asm volatile("msr fpcr, %0" : : "r"(value));
  }
#else
  using Register = unsigned;
  static constexpr Register kFlushBits = 0;
  static Register Get() { return 0; }
  static void Set(Register /*value*/) {}
#endif

  // An addition shows it sooner than the register, whose reading waits for all
  // that goes before: a third of what a small tensor costs.
  static bool AreFlushed() {
    const volatile double least = 4.9406564584124654e-324;
    return least + least == 0;
  }

  Register before_ = 0;  // Of the register, where it was changed.
};

}  // namespace tdbg

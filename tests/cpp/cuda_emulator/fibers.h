// Fibers: flows of control that take turns on one thread.
//
// x86-64 switches by hand, in a few nanoseconds; elsewhere ucontext does it,
// correctly and slowly.
//
// Thread safety: a fiber belongs to the thread that runs it first.

#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tdbg::cuda_emulator {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume() calls body(argument) on the fiber's own stack.
  // REQUIRES: the last body has returned.
  void Start(void (*body)(void*), void* argument);

  // Runs the fiber until it yields or ends.
  void Resume();

  // Back to who resumed it.  REQUIRES: called on the fiber.
  void Yield();

  [[nodiscard]] bool is_done() const { return is_done_; }

 private:
  static void Enter(Fiber* self);
  void SwitchIn();
  void SwitchOut();

  std::byte* stack_ = nullptr;  // Mapped, with a page before it that faults.
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool is_done_ = true;
#if defined(__x86_64__)
  void* own_ = nullptr;  // Stack pointers, where the registers are saved.
  void* resumer_ = nullptr;
#else
  ucontext_t own_;
  ucontext_t resumer_;
#endif
  // For AddressSanitizer.
  void* fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  std::size_t resumer_stack_size_ = 0;
};

}  // namespace tdbg::cuda_emulator

#include "cuda_emulator/fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace tdbg::cuda_emulator {
namespace {

constexpr std::size_t kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStack = std::size_t{256} << 10;
#else
constexpr std::size_t kStack = std::size_t{64} << 10;
#endif

#if defined(__x86_64__)
// Saves what a call must keep, stores the stack pointer at *from and goes on
// where `to` left off.
extern "C" void tdbg_emulator_switch(void** from, void* to);
asm(R"(
.text
.type tdbg_emulator_switch, @function
tdbg_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.type tdbg_emulator_enter, @function
tdbg_emulator_enter:
  movq %r12, %rdi
  callq *%r13
  ud2
.size tdbg_emulator_enter, .-tdbg_emulator_enter
)");
extern "C" void tdbg_emulator_enter();
#endif

}  // namespace

Fiber::Fiber() {
  void* map = mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED || mprotect(map, kPage, PROT_NONE) != 0) {
    std::perror("a stack for a fiber");
    std::abort();
  }
  stack_ = static_cast<std::byte*>(map);
}

Fiber::~Fiber() { munmap(stack_, kStack + kPage); }

void Fiber::Start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  is_done_ = false;
#if defined(__x86_64__)
  auto* top = reinterpret_cast<std::uint64_t*>(stack_ + kPage + kStack);
  // As if it had just called tdbg_emulator_switch: six registers and where to
  // return to; at that point the stack is a multiple of 16.
  top -= 9;
  for (int i = 0; i < 9; ++i) top[i] = 0;
  top[2] = reinterpret_cast<std::uint64_t>(&Fiber::Enter);  // r13
  top[3] = reinterpret_cast<std::uint64_t>(this);           // r12
  top[6] = reinterpret_cast<std::uint64_t>(&tdbg_emulator_enter);
  own_ = top;
#else
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_ + kPage;
  own_.uc_stack.ss_size = kStack;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(
      &own_, reinterpret_cast<void (*)()>(+[](unsigned high, unsigned low) {
        Enter(reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 |
                                       low));
      }),
      2, static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
#endif
}

void Fiber::Enter(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->resumer_stack_,
                                  &self->resumer_stack_size_);
#endif
  self->body_(self->argument_);
  self->is_done_ = true;
  self->SwitchOut();
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack_ + kPage, kStack);
#endif
  SwitchIn();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Yield() { SwitchOut(); }

void Fiber::SwitchIn() {
#if defined(__x86_64__)
  tdbg_emulator_switch(&resumer_, own_);
#else
  swapcontext(&resumer_, &own_);
#endif
}

void Fiber::SwitchOut() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_done_ ? nullptr : &fake_stack_,
                                 resumer_stack_, resumer_stack_size_);
#endif
#if defined(__x86_64__)
  tdbg_emulator_switch(&own_, resumer_);
#else
  swapcontext(&own_, &resumer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_,
                                  &resumer_stack_size_);
#endif
}

}  // namespace tdbg::cuda_emulator

// Staging is the bounded memory in which records wait for the writer thread: a
// ring that is handed out and given back in the same order.
//
// One mapping on huge pages, made once and reused.  It starts over at its
// beginning whenever it is empty, so a writer that keeps up uses little of a
// large ring, and what was used once costs no page fault again.  Fresh pages
// cost the producer more than the copy into them, so somebody else makes them
// ahead of it: TakePrefault gives, a huge page at a time, what is to be made:
// kFirstPrefault bytes at first, then twice as much as was ever in use, up to
// the capacity.  So the memory that a training pays for follows from what it
// stores, not from the bound.
//
// Thread safety: none; RecordQueue holds its lock around every call but
// Prefault and Abandon, which may run beside all others.  Memory handed out
// belongs to whoever asked for it until it is released.
//
// Errors: Create fails where the system has no memory to give.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/huge_memory.h"
#include "base/status.h"

namespace tdbg {

class Staging {
 public:
  // Everything handed out starts at a multiple of this.
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::uint64_t kFirstPrefault = 4ULL << 20;

  // A part of the ring.
  struct Part {
    std::uint64_t from = 0;
    std::uint64_t n = 0;
  };

  // A ring of at least `n_bytes` bytes.
  static Result<std::unique_ptr<Staging>> Create(std::uint64_t n_bytes);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // `n` contiguous bytes, or null when they are not free now.
  // REQUIRES: 0 < n <= capacity().
  std::byte* Allocate(std::uint64_t n);

  // Gives back the oldest allocation.
  // REQUIRES: `p` and `n` are what the oldest one was made with.
  void Release(const std::byte* p, std::uint64_t n);

  // The next part whose pages are to be made; n == 0 when there are enough.
  Part TakePrefault();
  // Makes them.
  void Prefault(Part part) const { (void)memory_.Populate(part.from, part.n); }

  // Never gives the memory back to the system: somebody may still write to it.
  // May run beside all other calls.
  void Abandon() { is_abandoned_.store(true, std::memory_order_relaxed); }

  [[nodiscard]] std::span<std::byte> memory() const {
    return {memory_.data(), static_cast<std::size_t>(memory_.size())};
  }
  [[nodiscard]] std::uint64_t capacity() const { return memory_.size(); }
  // Bytes handed out, including the end of the ring when it was skipped.
  [[nodiscard]] std::uint64_t used() const { return used_; }

 private:
  explicit Staging(HugeMemory memory) : memory_(std::move(memory)) {}

  // Constant after construction.
  HugeMemory memory_;
  std::atomic<bool> is_abandoned_{false};

  // Invariant: the bytes in use are [tail_, head_), or [tail_, skipped_from_)
  // and [0, head_) after the ring went round.  skipped_from_ == capacity()
  // unless an allocation did not fit before the end.
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t skipped_from_ = 0;
  std::uint64_t used_ = 0;
  bool wrapped_ = false;
  // The highest head_ there was, and up to where pages were made.
  std::uint64_t highest_ = 0;
  std::uint64_t prefaulted_ = 0;
};

}  // namespace tdbg

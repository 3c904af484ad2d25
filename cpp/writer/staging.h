// Staging is the bounded memory in which records wait for the writer thread: a
// ring that is handed out and given back in the same order.
//
// One mapping, made once.  Its pages are touched only as far as it was ever
// filled: it starts over at its beginning whenever it is empty, so that a
// writer that keeps up uses little memory of a large ring.
//
// Thread safety: none; RecordQueue holds its lock around every call.  Memory
// handed out belongs to whoever asked for it until it is released.
//
// Errors: Create fails where the system has no memory to give.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace tdbg {

class Staging {
 public:
  // Everything handed out starts at a multiple of this.
  static constexpr std::size_t kAlignment = 64;

  // A ring of at least `n_bytes` bytes.  A forked child does not inherit it:
  // the parent would pay for every page that it fills after the fork.
  static Result<std::unique_ptr<Staging>> Create(std::uint64_t n_bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // `n` contiguous bytes, or null when they are not free now.
  // REQUIRES: 0 < n <= capacity().
  std::byte* Allocate(std::uint64_t n);

  // Gives back the oldest allocation.
  // REQUIRES: `p` and `n` are what the oldest one was made with.
  void Release(const std::byte* p, std::uint64_t n);

  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  // Bytes handed out, including the end of the ring when it was skipped.
  [[nodiscard]] std::uint64_t used() const { return used_; }

 private:
  Staging(std::byte* base, std::uint64_t capacity)
      : base_(base), capacity_(capacity) {}

  // Constant after construction.
  std::byte* const base_;
  const std::uint64_t capacity_;

  // Invariant: the bytes in use are [tail_, head_), or [tail_, skipped_from_)
  // and [0, head_) after the ring went round.  skipped_from_ == capacity_
  // unless an allocation did not fit before the end.
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t skipped_from_ = 0;
  std::uint64_t used_ = 0;
  bool wrapped_ = false;
};

}  // namespace tdbg

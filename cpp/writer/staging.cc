#include "writer/staging.h"

#include <algorithm>

#include "base/check.h"

namespace tdbg {
namespace {

std::uint64_t Rounded(std::uint64_t n, std::uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

}  // namespace

Result<std::unique_ptr<Staging>> Staging::Create(std::uint64_t n_bytes) {
  Result<HugeMemory> memory = HugeMemory::Create(n_bytes);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Staging>(new Staging(std::move(memory).value()));
}

Staging::~Staging() {
  if (is_abandoned_.load(std::memory_order_relaxed)) memory_.Forget();
}

std::byte* Staging::Allocate(std::uint64_t n) {
  TDBG_DCHECK(0 < n && n <= capacity());
  n = Rounded(n, kAlignment);
  if (used_ == 0) {
    head_ = tail_ = 0;
    wrapped_ = false;
  }
  if (!wrapped_) {
    if (n > capacity() - head_) {
      // Not before the end: try the beginning, and skip the end.
      if (n > tail_) return nullptr;
      used_ += capacity() - head_;
      skipped_from_ = head_;
      head_ = 0;
      wrapped_ = true;
    }
  } else if (n > tail_ - head_) {
    return nullptr;
  }
  std::byte* p = memory_.data() + head_;
  head_ += n;
  used_ += n;
  highest_ = std::max(highest_, head_);
  return p;
}

void Staging::Release(const std::byte* p, std::uint64_t n) {
  TDBG_DCHECK(p >= memory_.data() && p < memory_.data() + capacity());
  TDBG_DCHECK(n <= used_);
  n = Rounded(n, kAlignment);
  tail_ = static_cast<std::uint64_t>(p - memory_.data()) + n;
  used_ -= n;
  if (wrapped_ && tail_ == skipped_from_) {
    used_ -= capacity() - skipped_from_;
    tail_ = 0;
    wrapped_ = false;
  }
}

Staging::Part Staging::TakePrefault() {
  const std::uint64_t wanted =
      std::min(capacity(), std::max(kFirstPrefault, 2 * highest_));
  // What was used already has its pages.
  prefaulted_ = std::max(
      prefaulted_, highest_ / HugeMemory::kHugePage * HugeMemory::kHugePage);
  if (prefaulted_ >= wanted) return {};
  const Part part{
      .from = prefaulted_,
      .n = std::min(HugeMemory::kHugePage, capacity() - prefaulted_)};
  prefaulted_ += part.n;
  return part;
}

}  // namespace tdbg

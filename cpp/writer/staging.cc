#include "writer/staging.h"

#include <sys/mman.h>

#include <cerrno>

namespace tdbg {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t Rounded(std::uint64_t n, std::uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

}  // namespace

Result<std::unique_ptr<Staging>> Staging::Create(std::uint64_t n_bytes) {
  const std::uint64_t capacity = Rounded(n_bytes, kPage);
  void* base = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::IoError(
        "map " + std::to_string(capacity) + " bytes of staging memory", errno);
  }
  // Only a saving; where it is refused, nothing else changes.
  (void)::madvise(base, capacity, MADV_DONTFORK);
  return std::unique_ptr<Staging>(
      new Staging(static_cast<std::byte*>(base), capacity));
}

Staging::~Staging() { ::munmap(base_, capacity_); }

std::byte* Staging::Allocate(std::uint64_t n) {
  n = Rounded(n, kAlignment);
  if (used_ == 0) {
    head_ = tail_ = 0;
    wrapped_ = false;
  }
  if (!wrapped_) {
    if (n > capacity_ - head_) {
      // Not before the end: try the beginning, and skip the end.
      if (n > tail_) return nullptr;
      used_ += capacity_ - head_;
      skipped_from_ = head_;
      head_ = 0;
      wrapped_ = true;
    }
  } else if (n > tail_ - head_) {
    return nullptr;
  }
  std::byte* p = base_ + head_;
  head_ += n;
  used_ += n;
  return p;
}

void Staging::Release(const std::byte* p, std::uint64_t n) {
  n = Rounded(n, kAlignment);
  tail_ = static_cast<std::uint64_t>(p - base_) + n;
  used_ -= n;
  if (wrapped_ && tail_ == skipped_from_) {
    used_ -= capacity_ - skipped_from_;
    tail_ = 0;
    wrapped_ = false;
  }
}

}  // namespace tdbg

#include "base/huge_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/check.h"

namespace tdbg {
namespace {

// Linux 5.14; older headers do not know it, and older kernels answer EINVAL.
constexpr int kPopulateWrite = 23;

std::uint64_t Rounded(std::uint64_t n, std::uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

}  // namespace

HugeMemory::HugeMemory(HugeMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<HugeMemory> HugeMemory::Create(std::uint64_t n) {
  const std::uint64_t size = Rounded(n, kPage);
  // A mapping starts at any page: what is before the first huge page, and too
  // much behind the end, is given back.
  const std::uint64_t slack = size >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return Status::IoError("map " + std::to_string(size) + " bytes of memory",
                           errno);
  }
  auto* start = static_cast<std::byte*>(mapped);
  if (slack != 0) {
    const std::uint64_t past =
        reinterpret_cast<std::uintptr_t>(start) % kHugePage;
    const std::uint64_t before = past == 0 ? 0 : kHugePage - past;
    if (before != 0) ::munmap(start, before);
    if (before != slack) ::munmap(start + before + size, slack - before);
    start += before;
    // Both are only savings; where one is refused, nothing else changes.
    (void)::madvise(start, size, MADV_HUGEPAGE);
  }
  (void)::madvise(start, size, MADV_DONTFORK);
  return HugeMemory(start, size);
}

bool HugeMemory::Populate(std::uint64_t from, std::uint64_t n) const {
  TDBG_DCHECK(from % kPage == 0);
  TDBG_DCHECK(n <= size_ && from <= size_ - n);
  int result = 0;
  do {
    result = ::madvise(data_ + from, n, kPopulateWrite);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace tdbg

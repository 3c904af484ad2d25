#include "reader/value_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace tdbg {
namespace {

constexpr std::size_t kHugePage = 2U << 20;
constexpr std::size_t kLarge = 2 * kHugePage;
constexpr std::align_val_t kAlignment{64};

}  // namespace

ValueBuffer::ValueBuffer(std::size_t n_bytes) : n_bytes_(n_bytes) {
  if (n_bytes < kLarge) {
    data_ = static_cast<std::byte*>(::operator new(n_bytes, kAlignment));
    return;
  }
  if (n_bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
  n_mapped_ = n_bytes + kHugePage;  // Room to begin at a huge page.
  map_ = ::mmap(nullptr, n_mapped_, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<std::byte*>(map_);
  const auto past = reinterpret_cast<std::uintptr_t>(start) % kHugePage;
  data_ = start + (past == 0 ? 0 : kHugePage - past);
  (void)::madvise(data_, n_bytes, MADV_HUGEPAGE);  // Only a help.
}

ValueBuffer::~ValueBuffer() {
  if (map_ != nullptr) {
    ::munmap(map_, n_mapped_);
  } else {
    ::operator delete(data_, kAlignment);
  }
}

}  // namespace tdbg

// HugeMemory is a private mapping for data that is filled, used and filled
// again: on transparent huge pages where the system has them, so that it costs
// few faults and few translations, and a direct write few pages to pin.
//
// A forked child does not inherit it: the parent would pay for every page that
// it fills after the fork, and nobody needs the copy.
//
// Thread safety: Populate may be called while others use the memory; the rest
// is as for any value.
//
// Errors: Create fails where the system has no memory to give.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tdbg {

class HugeMemory {
 public:
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kHugePage = 2ULL << 20;

  // None.
  HugeMemory() = default;
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  // At least `n` bytes of zeros, starting at a page; from kHugePage on, at a
  // huge page.  Nothing is touched yet.
  static Result<HugeMemory> Create(std::uint64_t n);

  // Leaves the memory mapped for good.
  void Forget() { data_ = nullptr; }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

  // Makes pages for [from, from + n), so that who uses them first need not wait
  // for it; their contents do not change.  False where the system cannot.
  // REQUIRES: `from` is a multiple of kPage; from + n <= size().
  bool Populate(std::uint64_t from, std::uint64_t n) const;

 private:
  HugeMemory(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace tdbg

// ValueBuffer is memory for the values of a tensor, not filled with zeros
// first.  Large ones are on huge pages where the system has them: touching
// fresh small pages takes longer than decoding into them.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <span>

namespace tdbg {

class ValueBuffer {
 public:
  // Throws std::bad_alloc.
  explicit ValueBuffer(std::size_t n_bytes);
  ~ValueBuffer();
  ValueBuffer(const ValueBuffer&) = delete;
  ValueBuffer& operator=(const ValueBuffer&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() { return {data_, n_bytes_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data_, n_bytes_};
  }

 private:
  const std::size_t n_bytes_;
  void* map_ = nullptr;
  std::size_t n_mapped_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace tdbg

// Bytes to numbers and back.  The only place that knows our byte order.
//
// Everything on disk is little-endian.  The library runs on little-endian
// machines only (checked below), so a load is a memcpy.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tdbg {

static_assert(std::endian::native == std::endian::little,
              "tdbg's file format is little-endian; so must the machine be");

// REQUIRES: `p` points to sizeof(T) readable bytes; no alignment needed.
template <typename T>
[[nodiscard]] T Load(const std::byte* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// REQUIRES: `p` points to sizeof(T) writable bytes; no alignment needed.
template <typename T>
void Store(std::byte* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(p, &value, sizeof(T));
}

// Appends encoded values to a byte vector that the caller owns.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(out) {}

  template <typename T>
  void Put(T value) {
    const std::size_t at = out_->size();
    out_->resize(at + sizeof(T));
    Store(out_->data() + at, value);
  }
  void PutBytes(const void* data, std::size_t n) {
    const auto* p = static_cast<const std::byte*>(data);
    out_->insert(out_->end(), p, p + n);
  }
  void PutString(std::string_view s) { PutBytes(s.data(), s.size()); }

  // Pads with zeros to a multiple of `alignment`, counted from `base`.
  void Align(std::size_t alignment, std::size_t base = 0) {
    const std::size_t past = (out_->size() - base) % alignment;
    if (past != 0) out_->resize(out_->size() + alignment - past);
  }
  [[nodiscard]] std::size_t size() const { return out_->size(); }

 private:
  std::vector<std::byte>* out_;
};

// Takes encoded values off the front of a byte span.  A read past the end
// makes failed() true and yields zeros from then on, so that a decoder may
// check once at its end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    T value{};
    if (Take(sizeof(T))) value = Load<T>(bytes_.data() + at_ - sizeof(T));
    return value;
  }
  // A view into the span, empty when fewer than `n` bytes are left.
  std::span<const std::byte> GetBytes(std::uint64_t n) {
    if (!Take(n)) return {};
    return bytes_.subspan(at_ - static_cast<std::size_t>(n),
                          static_cast<std::size_t>(n));
  }
  std::string GetString(std::uint64_t n) {
    const auto s = GetBytes(n);
    return {reinterpret_cast<const char*>(s.data()), s.size()};
  }
  void Skip(std::uint64_t n) { (void)Take(n); }

  [[nodiscard]] std::size_t remaining() const { return bytes_.size() - at_; }
  [[nodiscard]] std::size_t position() const { return at_; }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  bool Take(std::uint64_t n) {
    if (failed_ || n > bytes_.size() - at_) {
      failed_ = true;
      return false;
    }
    at_ += static_cast<std::size_t>(n);
    return true;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;  // Invariant: at_ <= bytes_.size().
  bool failed_ = false;
};

}  // namespace tdbg

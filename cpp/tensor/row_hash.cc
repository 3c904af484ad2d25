#include "tensor/row_hash.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/xxhash64.h"

namespace tdbg {
namespace {

// Where the block of this index begins in a row of `n_bytes`.
std::size_t BlockStart(std::size_t block, std::size_t n_bytes) {
  return block * (n_bytes - kRowBlockBytes) / (kRowBlocks - 1);
}

// The address of an element by its number in C order.
const std::byte* ElementAt(const TensorView& view, std::uint64_t number) {
  const auto* at = static_cast<const std::byte*>(view.data);
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(view.shape[i]);
    at += static_cast<std::int64_t>(number % extent) * view.strides[i];
    number /= extent;
  }
  return at;
}

// Copies bytes of a tensor that is not contiguous, which may begin and end
// inside of elements.
void Gather(const TensorView& view, std::uint64_t first_byte, std::size_t n,
            std::byte* out) {
  std::uint64_t element = first_byte / view.item_size;
  std::size_t skipped = first_byte % view.item_size;
  while (n > 0) {
    const std::size_t size = std::min<std::size_t>(view.item_size - skipped, n);
    std::memcpy(out, ElementAt(view, element) + skipped, size);
    out += size;
    n -= size;
    skipped = 0;
    ++element;
  }
}

}  // namespace

std::uint64_t HashedRows(std::uint64_t n_rows, std::uint64_t n_bytes) {
  const std::uint64_t read = std::min<std::uint64_t>(n_bytes, kWholeRow);
  const std::uint64_t fit = kMostHashedBytes / std::max<std::uint64_t>(read, 1);
  return std::min({n_rows, fit, kMostRowHashes});
}

void HashRows(const TensorView& view, std::uint64_t n_rows,
              std::vector<std::uint64_t>* out) {
  const std::uint64_t n_bytes = view.n_bytes() / n_rows;
  const std::uint64_t n_hashed = HashedRows(n_rows, n_bytes);
  const bool is_contiguous = IsContiguous(view);
  const bool is_whole = n_bytes <= kWholeRow;
  const std::uint64_t seed = is_whole ? 0 : n_bytes;
  const auto* const data = static_cast<const std::byte*>(view.data);
  std::array<std::byte, kWholeRow> bytes;
  static_assert(kRowBlocks * kRowBlockBytes == kWholeRow);
  for (std::uint64_t row = 0; row < n_hashed; ++row) {
    const std::uint64_t first = row * n_bytes;
    if (is_whole && is_contiguous) {
      out->push_back(XxHash64(data + first, n_bytes, seed));
      continue;
    }
    std::size_t n = n_bytes;
    if (is_whole) {
      Gather(view, first, n_bytes, bytes.data());
    } else {
      n = kWholeRow;
      for (std::size_t block = 0; block < kRowBlocks; ++block) {
        const std::uint64_t start = first + BlockStart(block, n_bytes);
        std::byte* const place = bytes.data() + block * kRowBlockBytes;
        if (is_contiguous) {
          std::memcpy(place, data + start, kRowBlockBytes);
        } else {
          Gather(view, start, kRowBlockBytes, place);
        }
      }
    }
    out->push_back(XxHash64(bytes.data(), n, seed));
  }
}

std::uint64_t CountVaried(const TensorView& view, std::uint64_t n_rows,
                          std::uint64_t n) {
  const std::uint64_t length = view.count() / n_rows;
  const bool is_contiguous = IsContiguous(view);
  const auto* const data = static_cast<const std::byte*>(view.data);
  const std::uint64_t looks = std::min(length, kVarietyLooks);
  std::uint64_t n_varied = 0;
  for (std::uint64_t row = 0; row < n && looks >= kVariety; ++row) {
    std::array<std::uint64_t, kVariety> seen{};
    std::size_t n_seen = 0;
    for (std::uint64_t look = 0; look < looks && n_seen < kVariety; ++look) {
      const std::uint64_t at = row * length + look * (length - 1) / (looks - 1);
      std::uint64_t bits = 0;
      std::memcpy(
          &bits,
          is_contiguous ? data + at * view.item_size : ElementAt(view, at),
          std::min<std::size_t>(view.item_size, sizeof(bits)));
      const auto end = seen.begin() + static_cast<std::ptrdiff_t>(n_seen);
      if (std::find(seen.begin(), end, bits) == end) seen[n_seen++] = bits;
    }
    n_varied += n_seen == kVariety ? 1 : 0;
  }
  return n_varied;
}

}  // namespace tdbg

#include "format/plane_codec.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/coding.h"
#include "format/plane_kernels.h"
#include "format/sample.h"

namespace tdbg {
namespace {

constexpr std::size_t kPlanesHead = 4;   // Before the lengths.
constexpr std::size_t kSparseHead = 12;  // Before the bitmap.

// Grows to what a chunk needs and stays: chunks are of one size.
class Scratch {
 public:
  std::byte* OfSize(std::size_t n) {
    if (bytes_.size() < n) bytes_.resize(n);
    return bytes_.data();
  }

 private:
  std::vector<std::byte> bytes_;
};

struct Scratches {
  Scratch planes;
  Scratch values;
  Scratch bitmap;
};

Scratches& ScratchesOfThisThread() {
  thread_local Scratches scratches;
  return scratches;
}

Status BadPlanes(const std::string& what) {
  return Status::Corruption("chunk: " + what, 0);
}

bool IsWidth(std::uint32_t width) {
  return width == 1 || width == 2 || width == 4 || width == 8;
}

}  // namespace

std::size_t EncodePlanes(std::span<const std::byte> raw,
                         const Encoding& encoding, std::span<std::byte> out) {
  const std::uint32_t width = encoding.width;
  TDBG_DCHECK(width == 1 || width == 2 || width == 4 || width == 8);
  const std::size_t n = raw.size() / width;
  const std::size_t n_tail = raw.size() % width;
  const std::uint32_t all = (1U << width) - 1;
  std::size_t at = kPlanesHead + std::size_t{4} * width;
  if (n == 0 || (encoding.raw_planes & all) == all ||
      out.size() < at + n_tail) {
    return 0;
  }
  const std::size_t end = out.size() - n_tail;

  // Raw planes before the first frame are split to where they will stand.
  std::array<std::byte*, kMaxPlanes> planes{};
  std::uint32_t n_placed = 0;
  while ((encoding.raw_planes >> n_placed & 1) != 0 &&
         end - at >= (n_placed + 1) * n) {
    planes[n_placed] = out.data() + at + n_placed * n;
    ++n_placed;
  }
  std::byte* scratch = ScratchesOfThisThread().planes.OfSize(raw.size());
  for (std::uint32_t p = n_placed; p < width; ++p) {
    planes[p] = scratch + (p - n_placed) * n;
  }
  PlaneKernelsInUse().split(raw.data(), n, width, encoding.rotate,
                            planes.data());

  Store(out.data(), static_cast<std::uint8_t>(encoding.rotate ? 1 : 0));
  Store(out.data() + 1, static_cast<std::uint8_t>(width));
  Store(out.data() + 2, std::uint16_t{0});
  for (std::uint32_t p = 0; p < width; ++p) {
    std::size_t length = 0;
    const bool is_raw = (encoding.raw_planes >> p & 1) != 0;
    if (!is_raw) {
      length = CompressFrame({planes[p], n}, encoding.effort,
                             out.subspan(at, end - at));
    }
    if (length == 0) {
      length = n;
      if (end - at < n) return 0;
      if (p >= n_placed) std::memcpy(out.data() + at, planes[p], n);
    }
    Store(out.data() + kPlanesHead + std::size_t{4} * p,
          static_cast<std::uint32_t>(length));
    at += length;
  }
  if (n_tail != 0) {
    std::memcpy(out.data() + at, raw.data() + n * width, n_tail);
  }
  return at + n_tail;
}

Status DecodePlanes(std::span<const std::byte> stored,
                    std::span<std::byte> out) {
  if (stored.size() < kPlanesHead) return BadPlanes("planes without a head");
  const auto form = Load<std::uint8_t>(stored.data());
  const std::uint32_t width = Load<std::uint8_t>(stored.data() + 1);
  if (form > 1 || !IsWidth(width) ||
      Load<std::uint16_t>(stored.data() + 2) != 0) {
    return BadPlanes("planes of an unknown form");
  }
  const std::size_t n = out.size() / width;
  const std::size_t n_tail = out.size() % width;
  const std::size_t n_head = kPlanesHead + std::size_t{4} * width;
  if (stored.size() < n_head + n_tail)
    return BadPlanes("planes without lengths");
  std::span<const std::byte> left =
      stored.subspan(n_head, stored.size() - n_head - n_tail);

  std::byte* scratch = ScratchesOfThisThread().planes.OfSize(out.size());
  std::array<const std::byte*, kMaxPlanes> planes{};
  for (std::uint32_t p = 0; p < width; ++p) {
    const std::size_t length =
        Load<std::uint32_t>(stored.data() + kPlanesHead + std::size_t{4} * p);
    if (length > n || length > left.size()) {
      return BadPlanes("a plane of " + std::to_string(length) + " bytes");
    }
    const std::span<const std::byte> plane = left.first(length);
    left = left.subspan(length);
    planes[p] = plane.data();
    if (length == n) continue;
    TDBG_RETURN_IF_ERROR(DecompressFrame(plane, {scratch + p * n, n}));
    planes[p] = scratch + p * n;
  }
  if (!left.empty()) return BadPlanes("bytes after the planes");
  PlaneKernelsInUse().join(planes.data(), n, width, form == 1, out.data());
  if (n_tail != 0) {
    std::memcpy(out.data() + n * width, stored.data() + stored.size() - n_tail,
                n_tail);
  }
  return Status::Ok();
}

std::size_t EncodeSparse(std::span<const std::byte> raw,
                         const Encoding& encoding, std::span<std::byte> out) {
  const std::uint32_t width = encoding.width;
  TDBG_DCHECK(width == 1 || width == 2 || width == 4 || width == 8);
  const std::size_t n = raw.size() / width;
  const std::size_t n_tail = raw.size() % width;
  const std::size_t n_bitmap = (n + 7) / 8;
  if (out.size() < kSparseHead + n_bitmap + n_tail) return 0;
  const std::size_t end = out.size() - n_tail;
  Scratches& scratches = ScratchesOfThisThread();
  std::byte* bitmap = scratches.bitmap.OfSize(n_bitmap);
  std::byte* values =
      scratches.values.OfSize(raw.size() + PlaneKernels::kSlack);
  const std::size_t n_values =
      PlaneKernelsInUse().compact(raw.data(), n, width, bitmap, values);

  std::size_t n_stored_bitmap = 0;
  const std::span<const std::byte> bits(bitmap, n_bitmap);
  if (SamplePlanes(bits, {}, 1, false).RawPlanes() == 0) {
    n_stored_bitmap = CompressFrame(bits, encoding.effort,
                                    out.subspan(kSparseHead, n_bitmap));
  }
  if (n_stored_bitmap == 0) {
    std::memcpy(out.data() + kSparseHead, bitmap, n_bitmap);
    n_stored_bitmap = n_bitmap;
  }
  std::size_t at = kSparseHead + n_stored_bitmap;

  const std::span<const std::byte> body(values, n_values * width);
  Codec codec = Codec::kPlanes;
  std::size_t n_body = EncodePlanes(body, encoding, out.subspan(at, end - at));
  if (n_body == 0 || n_body > body.size()) {
    codec = Codec::kRaw;
    n_body = body.size();
    if (end - at < n_body) return 0;
    std::memcpy(out.data() + at, body.data(), n_body);
  }
  at += n_body;
  if (n_tail != 0) {
    std::memcpy(out.data() + at, raw.data() + n * width, n_tail);
  }
  Store(out.data(), static_cast<std::uint8_t>(codec));
  Store(out.data() + 1, static_cast<std::uint8_t>(width));
  Store(out.data() + 2, std::uint16_t{0});
  Store(out.data() + 4, static_cast<std::uint32_t>(n_values));
  Store(out.data() + 8, static_cast<std::uint32_t>(n_stored_bitmap));
  return at + n_tail;
}

Status DecodeSparse(std::span<const std::byte> stored,
                    std::span<std::byte> out) {
  if (stored.size() < kSparseHead) return BadPlanes("a bitmap without a head");
  const auto codec = static_cast<Codec>(Load<std::uint8_t>(stored.data()));
  const std::uint32_t width = Load<std::uint8_t>(stored.data() + 1);
  const std::size_t n_values = Load<std::uint32_t>(stored.data() + 4);
  const std::size_t n_stored_bitmap = Load<std::uint32_t>(stored.data() + 8);
  if ((codec != Codec::kRaw && codec != Codec::kPlanes) || !IsWidth(width) ||
      Load<std::uint16_t>(stored.data() + 2) != 0) {
    return BadPlanes("a bitmap of an unknown form");
  }
  const std::size_t n = out.size() / width;
  const std::size_t n_tail = out.size() % width;
  const std::size_t n_bitmap = (n + 7) / 8;
  if (n_values > n || n_stored_bitmap > n_bitmap ||
      stored.size() < kSparseHead + n_stored_bitmap + n_tail) {
    return BadPlanes("a bitmap of " + std::to_string(n_stored_bitmap) +
                     " bytes and " + std::to_string(n_values) + " values");
  }
  const PlaneKernels& kernels = PlaneKernelsInUse();
  Scratches& scratches = ScratchesOfThisThread();
  const std::byte* bitmap = stored.data() + kSparseHead;
  if (n_stored_bitmap < n_bitmap) {
    std::byte* decoded = scratches.bitmap.OfSize(n_bitmap);
    TDBG_RETURN_IF_ERROR(
        DecompressFrame({bitmap, n_stored_bitmap}, {decoded, n_bitmap}));
    bitmap = decoded;
  }
  const std::size_t n_unused = n_bitmap * 8 - n;
  if (n_unused != 0 &&
      static_cast<unsigned>(bitmap[n_bitmap - 1]) >> (8 - n_unused) != 0) {
    return BadPlanes("bits behind the end of the bitmap");
  }
  if (kernels.count(bitmap, n_bitmap) != n_values) {
    return BadPlanes("another number of values than its bitmap says");
  }

  const std::size_t at = kSparseHead + n_stored_bitmap;
  const auto body = stored.subspan(at, stored.size() - at - n_tail);
  const std::byte* values = body.data();
  if (codec == Codec::kPlanes) {
    std::byte* decoded = scratches.values.OfSize(n_values * width);
    TDBG_RETURN_IF_ERROR(DecodePlanes(body, {decoded, n_values * width}));
    values = decoded;
  } else if (body.size() != n_values * width) {
    return BadPlanes("values of another length than their number says");
  }
  kernels.expand(bitmap, values, n_values, n, width, out.data());
  if (n_tail != 0) {
    std::memcpy(out.data() + n * width, stored.data() + stored.size() - n_tail,
                n_tail);
  }
  return Status::Ok();
}

}  // namespace tdbg

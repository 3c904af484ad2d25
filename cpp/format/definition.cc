#include "base/checked_math.h"
#include "base/coding.h"
#include "format/record.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kMaxBytes = 1ULL << 62;

Status BadDefinition(const std::string& what) {
  return Status::Corruption("definition: " + what, 0);
}

std::vector<std::int64_t> GetExtents(ByteReader* in, std::size_t n) {
  std::vector<std::int64_t> extents(n);
  for (std::int64_t& extent : extents) extent = in->Get<std::int64_t>();
  return extents;
}

bool AnyNegative(const std::vector<std::int64_t>& extents) {
  for (const std::int64_t extent : extents) {
    if (extent < 0) return true;
  }
  return false;
}

Status CheckElementType(const Definition& definition) {
  const auto code = static_cast<std::uint16_t>(definition.dtype);
  const std::uint32_t found = definition.item_size;
  if (definition.dtype == DType::kInvalid) {
    if (found != 0) return BadDefinition("elements without a type have a size");
    return Status::Ok();
  }
  if (!IsKnownDType(code)) {
    return Status::Unsupported("definition " + std::to_string(definition.id) +
                               ": element type " + std::to_string(code) +
                               " is unknown to this build");
  }
  if (definition.dtype == DType::kNumpy) {
    if (found == 0) return BadDefinition("elements of 0 bytes");
    return Status::Ok();
  }
  if (found != ItemSize(definition.dtype)) {
    return BadDefinition("elements of type " + std::to_string(code) + " have " +
                         std::to_string(ItemSize(definition.dtype)) +
                         " bytes, not " + std::to_string(found));
  }
  return Status::Ok();
}

}  // namespace

Result<std::uint64_t> RawLength(const Definition& definition) {
  // A zero extent must not hide that the others are absurd, so the product is
  // taken over the others, and must fit.
  std::uint64_t n = definition.item_size;
  bool empty = false;
  for (const std::int64_t extent : definition.shape) {
    if (extent < 0) return BadDefinition("a negative extent");
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (!CheckedMul(n, static_cast<std::uint64_t>(extent), &n) ||
        n > kMaxBytes) {
      return Status::LimitExceeded(
          "definition: shape times element size is above 2^62 bytes");
    }
  }
  return empty ? 0 : n;
}

std::vector<std::byte> EncodeDefinition(const Definition& definition) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(definition.id);
  w.Put(static_cast<std::uint16_t>(definition.role));
  w.Put(static_cast<std::uint16_t>(definition.dtype));
  w.Put(definition.item_size);
  w.Put(static_cast<std::uint16_t>(definition.shape.size()));
  w.Put(static_cast<std::uint16_t>(definition.aliases.size()));
  w.Put(static_cast<std::uint16_t>(definition.placements.size()));
  w.Put(static_cast<std::uint16_t>(definition.global_shape.size()));
  w.Put(static_cast<std::uint32_t>(definition.name.size()));
  w.Put(static_cast<std::uint32_t>(definition.dtype_text.size()));
  w.Put(definition.flags);
  for (const std::int64_t extent : definition.shape) w.Put(extent);
  for (const std::int64_t extent : definition.global_shape) w.Put(extent);
  for (const std::int64_t start : definition.global_offset) w.Put(start);
  for (const Placement& placement : definition.placements) {
    w.Put(static_cast<std::uint8_t>(placement.kind));
    w.Put(placement.reduction);
    w.Put(placement.dimension);
    w.Put(placement.mesh_size);
    w.Put(placement.coordinate);
    w.Put(std::uint32_t{0});
  }
  w.PutString(definition.name);
  w.PutString(definition.dtype_text);
  for (const std::string& alias : definition.aliases) {
    w.Put(static_cast<std::uint32_t>(alias.size()));
    w.PutString(alias);
  }
  return out;
}

Result<Definition> DecodeDefinition(std::span<const std::byte> payload) {
  if (payload.size() > limits::kDefinition) {
    return Status::LimitExceeded(
        "definition: " + std::to_string(payload.size()) + " bytes");
  }
  ByteReader in(payload);
  Definition d;
  d.id = in.Get<std::uint32_t>();
  d.role = static_cast<TensorRole>(in.Get<std::uint16_t>());
  d.dtype = static_cast<DType>(in.Get<std::uint16_t>());
  d.item_size = in.Get<std::uint32_t>();
  const auto n = in.Get<std::uint16_t>();
  const auto n_aliases = in.Get<std::uint16_t>();
  const auto n_placements = in.Get<std::uint16_t>();
  const auto n_global = in.Get<std::uint16_t>();
  const auto name_length = in.Get<std::uint32_t>();
  const auto dtype_length = in.Get<std::uint32_t>();
  d.flags = in.Get<std::uint32_t>();
  if (in.failed()) return BadDefinition("too short");
  if (d.id == 0) return BadDefinition("id 0");
  if (n > limits::kDimensions) {
    return Status::LimitExceeded("definition: " + std::to_string(n) +
                                 " dimensions");
  }
  if (n_global != 0 && n_global != n) {
    return BadDefinition(std::to_string(n_global) + " global dimensions of " +
                         std::to_string(n));
  }
  if (name_length > limits::kName || dtype_length > limits::kName) {
    return Status::LimitExceeded("definition: a name of " +
                                 std::to_string(name_length) + " bytes, type " +
                                 std::to_string(dtype_length));
  }
  d.shape = GetExtents(&in, n);
  d.global_shape = GetExtents(&in, n_global);
  d.global_offset = GetExtents(&in, n_global);
  if (AnyNegative(d.global_shape) || AnyNegative(d.global_offset)) {
    return BadDefinition("a negative global extent");
  }
  for (std::uint16_t i = 0; i < n_placements && !in.failed(); ++i) {
    Placement placement;
    placement.kind = static_cast<PlacementKind>(in.Get<std::uint8_t>());
    placement.reduction = in.Get<std::uint8_t>();
    placement.dimension = in.Get<std::uint16_t>();
    placement.mesh_size = in.Get<std::uint32_t>();
    placement.coordinate = in.Get<std::uint32_t>();
    in.Skip(4);
    d.placements.push_back(placement);
  }
  d.name = in.GetString(name_length);
  d.dtype_text = in.GetString(dtype_length);
  for (std::uint16_t i = 0; i < n_aliases && !in.failed(); ++i) {
    d.aliases.push_back(in.GetString(in.Get<std::uint32_t>()));
  }
  if (in.failed()) return BadDefinition("its lengths are more than its bytes");
  TDBG_RETURN_IF_ERROR(CheckElementType(d));
  if (const auto raw = RawLength(d); !raw.ok()) return raw.status();
  return d;
}

}  // namespace tdbg

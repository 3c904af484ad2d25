#include "reader/tensor_values.h"

#include <algorithm>
#include <new>
#include <optional>
#include <ranges>

#include "base/crc32c.h"
#include "format/tensor_record.h"

namespace tdbg {
namespace {

constexpr std::size_t kChainLimit = 64;

// One tensor record: where it lies and what its head says.
struct Located {
  TensorEntry entry;
  TensorHead head;

  [[nodiscard]] std::uint64_t data_at() const {
    return entry.offset + limits::kRecordHeader + head.data_offset;
  }
  [[nodiscard]] std::uint64_t n_stored() const {
    return entry.payload_length - head.data_offset;
  }
  [[nodiscard]] bool needs_base() const {
    return std::any_of(
        head.chunks.begin(), head.chunks.end(),
        [](const Chunk& chunk) { return (chunk.flags & kChunkXorBase) != 0; });
  }
  [[nodiscard]] bool is_raw() const {
    return std::all_of(head.chunks.begin(), head.chunks.end(),
                       [](const Chunk& chunk) {
                         return chunk.codec == Codec::kRaw && chunk.flags == 0;
                       });
  }
};

// Says in which file and record a Status arose.
Status Placed(const Status& status, const std::string& file,
              std::uint64_t offset, std::uint64_t within) {
  const std::string message =
      file + ": record at " + std::to_string(offset) + ": " + status.message();
  if (status.code() == StatusCode::kCorruption) {
    return Status::Corruption(message, offset + within);
  }
  if (status.code() == StatusCode::kIoError) {
    return Status::IoError(message, status.system_error());
  }
  return {status.code(), message};
}

class Reading {
 public:
  Reading(const Tables& tables, std::uint64_t max_bytes, ShardReader* shard)
      : tables_(tables), max_bytes_(max_bytes), shard_(*shard) {}

  Result<TensorValue> Read(const TensorEntry& entry) {
    auto chain = Chain(entry);
    if (!chain.ok()) return chain.status();
    if (auto mapped = Mapped(chain.value().front())) {
      return *std::move(mapped);
    }
    TensorValue value;
    std::vector<std::byte> base;
    // From the key frame to the tensor that was asked for.
    for (const Located& tensor : chain.value() | std::views::reverse) {
      std::swap(base, value.owned);
      if (Status status = Decode(tensor, base, &value.owned); !status.ok()) {
        return status;
      }
    }
    value.bytes = value.owned;
    return value;
  }

 private:
  Status Bad(const TensorEntry& entry, const std::string& what) {
    return Placed(Status::Corruption(what, 0), shard_.file().name(),
                  entry.offset, 0);
  }

  // Reads the record's header and head again: the tables hold no chunks, and
  // the file may have changed since.
  Result<Located> Locate(const TensorEntry& entry) {
    const std::uint64_t end = NextRecord(entry.offset, entry.payload_length);
    const auto bytes =
        shard_.file().View(entry.offset, limits::kRecordHeader, end);
    if (!bytes.ok()) return Error(bytes.status(), entry);
    const auto header = DecodeRecordHeader(bytes.value(), shard_.header().salt);
    if (!header.ok()) return Error(header.status(), entry);
    if (header.value().type != RecordType::kTensor ||
        header.value().sequence != entry.sequence ||
        header.value().payload_length != entry.payload_length) {
      return Bad(entry, "another record than before");
    }
    const auto payload =
        shard_.file().View(entry.offset + limits::kRecordHeader,
                           header.value().checked_length, end);
    if (!payload.ok()) return Error(payload.status(), entry);
    if (MaskedCrc32c(payload.value().data(), payload.value().size()) !=
        header.value().payload_crc) {
      return Bad(entry, "checksum of the payload");
    }
    auto head = DecodeTensorHead(payload.value(), entry.payload_length);
    if (!head.ok()) return Error(head.status(), entry);
    return Located{entry, std::move(head).value()};
  }

  Status Error(const Status& status, const TensorEntry& entry) {
    return Placed(status, shard_.file().name(), entry.offset, 0);
  }

  // Whether the head fits the definition, and the limits.
  Status CheckHead(const Located& tensor) {
    const Definition* definition = tables_.Find(tensor.head.definition);
    if (definition == nullptr) {
      return Bad(tensor.entry, "definition " +
                                   std::to_string(tensor.head.definition) +
                                   " is not there");
    }
    const auto raw = RawLength(*definition);
    if (!raw.ok()) return Error(raw.status(), tensor.entry);
    if (raw.value() != tensor.head.raw_length) {
      return Bad(tensor.entry, std::to_string(tensor.head.raw_length) +
                                   " raw bytes, and the definition says " +
                                   std::to_string(raw.value()));
    }
    return Status::Ok();
  }

  // The tensor, then its base, then the base of that, up to a key frame.
  Result<std::vector<Located>> Chain(const TensorEntry& entry) {
    std::vector<Located> chain;
    TensorEntry next = entry;
    for (;;) {
      auto located = Locate(next);
      if (!located.ok()) return located.status();
      Located tensor = std::move(located).value();
      TDBG_RETURN_IF_ERROR(CheckHead(tensor));
      if (!chain.empty() &&
          tensor.head.definition != chain.front().head.definition) {
        return Bad(entry, "its base is a tensor of another definition");
      }
      const bool needs_base = tensor.needs_base();
      const std::uint64_t base = tensor.head.base_sequence;
      chain.push_back(std::move(tensor));
      if (!needs_base) return chain;
      if (chain.size() > kChainLimit) {
        return Error(Status::LimitExceeded("a chain of more than 64 bases"),
                     entry);
      }
      const auto found = FindBase(next, base);
      if (!found) {
        return Bad(next, "its base, record " + std::to_string(base) +
                             ", is not there");
      }
      next = *found;
    }
  }

  // The tensor record `sequence` of this shard, if it stands before `entry`:
  // sequences fall along a chain, so it ends.
  std::optional<TensorEntry> FindBase(const TensorEntry& entry,
                                      std::uint64_t sequence) {
    // All tensors of a shard stand together, in ascending order.
    const auto key = [](const TensorEntry& e) {
      return std::pair(e.shard_number, e.sequence);
    };
    const std::pair wanted(entry.shard_number, sequence);
    if (wanted >= key(entry)) return std::nullopt;
    const auto found = std::lower_bound(
        tables_.tensors.begin(), tables_.tensors.end(), wanted,
        [&](const TensorEntry& e, const auto& w) { return key(e) < w; });
    if (found == tables_.tensors.end() || key(*found) != wanted) {
      return std::nullopt;
    }
    return *found;
  }

  // The values where they lie, when they lie there as they are.
  std::optional<Result<TensorValue>> Mapped(const Located& tensor) {
    const auto& map = shard_.file().map();
    if (map == nullptr || !tensor.is_raw()) return std::nullopt;
    const std::uint64_t end = tensor.data_at() + tensor.n_stored();
    if (end > map->bytes().size()) return std::nullopt;
    const auto data = map->bytes().subspan(tensor.data_at(), tensor.n_stored());
    if (data.size() != tensor.head.raw_length) {
      return Bad(tensor.entry, "raw chunks of another length");
    }
    std::uint64_t at = 0;
    for (const Chunk& chunk : tensor.head.chunks) {
      if (MaskedCrc32c(data.data() + at, chunk.stored_length) != chunk.crc) {
        return Placed(Status::Corruption("checksum of a chunk", 0),
                      shard_.file().name(), tensor.entry.offset,
                      limits::kRecordHeader + tensor.head.data_offset + at);
      }
      at += chunk.stored_length;
    }
    TensorValue value;
    value.bytes = data;
    value.keep_alive = map;
    return value;
  }

  // What the bytes on the disk justify, or the option allows.
  Status CheckMemory(const Located& tensor) {
    const std::uint64_t stored =
        std::min(tensor.n_stored(), shard_.file().AllocatedBytes());
    if (tensor.head.raw_length > max_bytes_ &&
        tensor.head.raw_length / 8 > stored) {
      return Error(
          Status::LimitExceeded(std::to_string(tensor.n_stored()) +
                                " stored bytes decode to " +
                                std::to_string(tensor.head.raw_length) +
                                "; ReaderOptions::max_tensor_bytes allows " +
                                std::to_string(max_bytes_)),
          tensor.entry);
    }
    return Status::Ok();
  }

  Status Decode(const Located& tensor, std::span<const std::byte> base,
                std::vector<std::byte>* out) {
    TDBG_RETURN_IF_ERROR(CheckMemory(tensor));
    const Definition* definition = tables_.Find(tensor.head.definition);
    try {
      out->resize(tensor.head.raw_length);
      const std::uint64_t end = tensor.data_at() + tensor.n_stored();
      const auto data =
          shard_.file().View(tensor.data_at(), tensor.n_stored(), end);
      if (!data.ok()) return Error(data.status(), tensor.entry);
      const Status status = DecodeTensor(tensor.head, data.value(),
                                         definition->item_size, base, *out);
      shard_.file().Forget();
      if (!status.ok()) {
        return Placed(status, shard_.file().name(), tensor.entry.offset,
                      limits::kRecordHeader + tensor.head.data_offset +
                          status.offset().value_or(0));
      }
    } catch (const std::bad_alloc&) {
      return Error(Status::ResourceExhausted(
                       "no memory for a tensor of " +
                       std::to_string(tensor.head.raw_length) + " bytes"),
                   tensor.entry);
    }
    return Status::Ok();
  }

  const Tables& tables_;
  const std::uint64_t max_bytes_;
  ShardReader& shard_;
};

}  // namespace

Result<TensorValue> ReadTensorValue(const Tables& tables, std::size_t i,
                                    std::uint64_t max_bytes,
                                    ShardReader* shard) {
  // Values are read long after the scan, and of a growing file.
  shard->file().Forget();
  return Reading(tables, max_bytes, shard).Read(tables.tensors[i]);
}

}  // namespace tdbg

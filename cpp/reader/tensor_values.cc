#include "reader/tensor_values.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <ranges>
#include <system_error>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "format/tensor_record.h"
#include "reader/problem.h"

namespace tdbg {
namespace {

constexpr std::size_t kChainLimit = 64;
// A thread is worth starting for so much.
constexpr std::uint64_t kBytesPerThread = 1U << 20;
constexpr std::size_t kMaxVerified = 1U << 16;  // 5 MB.

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

// Decodes chunks [first, last) of `head`, which take `data`, to their place in
// `out`.
Status DecodeChunks(const TensorHead& head, std::size_t first, std::size_t last,
                    std::span<const std::byte> data, std::uint32_t item_size,
                    std::span<const std::byte> base, std::span<std::byte> out) {
  const std::uint64_t from = std::uint64_t{head.chunk_size} * first;
  const std::uint64_t n =
      std::min(std::uint64_t{head.chunk_size} * last, head.raw_length) - from;
  TensorHead part = head;
  part.raw_length = n;
  part.chunks.assign(head.chunks.begin() + static_cast<std::ptrdiff_t>(first),
                     head.chunks.begin() + static_cast<std::ptrdiff_t>(last));
  return DecodeTensor(
      part, data, item_size,
      base.size() == head.raw_length ? base.subspan(from, n) : base,
      out.subspan(from, n));
}

// DecodeTensor by several threads; false when anything fails, or when there
// are no threads.
bool DecodeInParallel(const TensorHead& head, unsigned n_threads,
                      std::span<const std::byte> data, std::uint32_t item_size,
                      std::span<const std::byte> base,
                      std::span<std::byte> out) {
  const std::size_t n_chunks = head.chunks.size();
  std::vector<char> ok(n_threads, 0);
  std::vector<std::thread> threads;
  threads.reserve(n_threads);
  std::uint64_t at = 0;
  std::size_t next = 0;
  for (unsigned t = 0; t < n_threads; ++t) {
    const std::size_t last = n_chunks * (t + 1) / n_threads;
    std::uint64_t n_stored = 0;
    for (std::size_t i = next; i < last; ++i) {
      n_stored += head.chunks[i].stored_length;
    }
    const auto work = [&, t, next, last, at, n_stored] {
      try {
        const auto part = data.subspan(at, n_stored);
        const bool done =
            DecodeChunks(head, next, last, part, item_size, base, out).ok();
        ok[t] = done ? 1 : 0;
      } catch (const std::bad_alloc&) {
        ok[t] = 0;  // It would end the process: other threads are not joined.
      }
    };
    at += n_stored;
    next = last;
    if (t + 1 == n_threads) {
      work();
      break;
    }
    try {
      threads.emplace_back(work);
    } catch (const std::exception&) {
      break;  // No thread to be had, or no memory for it: ok says so.
    }
  }
  for (std::thread& thread : threads) thread.join();
  return std::all_of(ok.begin(), ok.end(), [](char c) { return c != 0; });
}

}  // namespace

class TensorReading {
 public:
  TensorReading(TensorValues* values, std::span<const TensorEntry> tensors,
                const Definitions& definitions, ShardReader* shard)
      : values_(*values),
        tensors_(tensors),
        definitions_(definitions),
        shard_(*shard) {}

  Result<TensorValue> Read(const TensorEntry& entry) {
    if (const auto kept = values_.FindKept(KeyOf(entry))) return Of(kept);
    auto chain = Chain(entry);
    if (!chain.ok()) return chain.status();
    if (auto mapped = Mapped(chain.value().front())) {
      return *std::move(mapped);
    }
    std::shared_ptr<const ValueBuffer> value = base_;
    // From the key frame to the tensor that was asked for.
    for (const Located& tensor : chain.value() | std::views::reverse) {
      auto decoded = Decode(tensor, value);
      if (!decoded.ok()) return decoded.status();
      value = std::move(decoded).value();
    }
    if (base_ != nullptr || chain.value().size() > 1) {
      values_.Keep(KeyOf(entry), value);
    }
    return Of(value);
  }

 private:
  static TensorValues::Key KeyOf(const TensorEntry& entry) {
    return {entry.shard_number, entry.sequence};
  }
  static TensorValue Of(const std::shared_ptr<const ValueBuffer>& buffer) {
    return {buffer->bytes(), buffer};
  }

  Status Bad(const TensorEntry& entry, const std::string& what) {
    return InRecord(Status::Corruption(what, 0), shard_.file().name(),
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
    return InRecord(status, shard_.file().name(), entry.offset, 0);
  }

  // Whether the head fits the definition, and the limits.
  Status CheckHead(const Located& tensor) {
    const auto definition = definitions_.Find(tensor.head.definition);
    if (!definition) {
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

  // The tensor, then its base, then the base of that, up to a key frame or to
  // one that is at hand, which then is base_.
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
      if (next.definition == chain.front().head.definition) {
        base_ = values_.FindKept(KeyOf(next));
        if (base_ != nullptr) return chain;
      }
    }
  }

  // The tensor record `sequence` of this shard, if it stands before `entry`:
  // sequences fall along a chain, so it ends.
  std::optional<TensorEntry> FindBase(const TensorEntry& entry,
                                      std::uint64_t sequence) {
    if (sequence >= entry.sequence) return std::nullopt;
    const auto found = std::lower_bound(
        tensors_.begin(), tensors_.end(), sequence,
        [](const TensorEntry& e, std::uint64_t s) { return e.sequence < s; });
    if (found == tensors_.end() || found->sequence != sequence) {
      return std::nullopt;
    }
    return *found;
  }

  // Whether these are the values of a tensor that is stored as it is.
  Status CheckRaw(const Located& tensor, std::span<const std::byte> data) {
    if (data.size() != tensor.head.raw_length) {
      return Bad(tensor.entry, "raw chunks of another length");
    }
    std::uint64_t at = 0;
    for (const Chunk& chunk : tensor.head.chunks) {
      if (MaskedCrc32c(data.data() + at, chunk.stored_length) != chunk.crc) {
        return InRecord(Status::Corruption("checksum of a chunk", 0),
                        shard_.file().name(), tensor.entry.offset,
                        limits::kRecordHeader + tensor.head.data_offset + at);
      }
      at += chunk.stored_length;
    }
    return Status::Ok();
  }

  // The values where they lie, when they lie there as they are.
  std::optional<Result<TensorValue>> Mapped(const Located& tensor) {
    const auto& map = shard_.file().map();
    if (map == nullptr || !tensor.is_raw()) return std::nullopt;
    const std::uint64_t end = tensor.data_at() + tensor.n_stored();
    if (end > map->bytes().size()) return std::nullopt;
    const auto data = map->bytes().subspan(tensor.data_at(), tensor.n_stored());
    TensorValue value{data, map};
    // Nobody writes in a sealed shard: once is enough.
    if (values_.verified_.contains(KeyOf(tensor.entry))) return value;
    const Status status = CheckRaw(tensor, data);
    if (!status.ok()) return status;
    if (values_.verified_.size() >= kMaxVerified) values_.verified_.clear();
    values_.verified_.insert(KeyOf(tensor.entry));
    return value;
  }

  // What the bytes on the disk justify, or the option allows.
  Status CheckMemory(const Located& tensor) {
    const std::uint64_t stored =
        std::min(tensor.n_stored(), shard_.file().AllocatedBytes());
    if (tensor.head.raw_length > values_.options_.max_tensor_bytes &&
        tensor.head.raw_length / 8 > stored) {
      return Error(
          Status::LimitExceeded(
              std::to_string(tensor.n_stored()) + " stored bytes decode to " +
              std::to_string(tensor.head.raw_length) +
              "; ReaderOptions::max_tensor_bytes allows " +
              std::to_string(values_.options_.max_tensor_bytes)),
          tensor.entry);
    }
    return Status::Ok();
  }

  Result<std::shared_ptr<const ValueBuffer>> Decode(
      const Located& tensor, const std::shared_ptr<const ValueBuffer>& before) {
    TDBG_RETURN_IF_ERROR(CheckMemory(tensor));
    const auto definition = definitions_.Find(tensor.head.definition);
    const auto base =
        before == nullptr ? std::span<const std::byte>() : before->bytes();
    try {
      const auto buffer = std::make_shared<ValueBuffer>(tensor.head.raw_length);
      if (tensor.is_raw() && tensor.n_stored() == tensor.head.raw_length) {
        // Without a stop in between.
        const Status read =
            shard_.file().Read(tensor.data_at(), buffer->bytes());
        if (!read.ok()) return Error(read, tensor.entry);
        TDBG_RETURN_IF_ERROR(CheckRaw(tensor, buffer->bytes()));
        return std::shared_ptr<const ValueBuffer>(buffer);
      }
      const std::uint64_t end = tensor.data_at() + tensor.n_stored();
      const auto data =
          shard_.file().View(tensor.data_at(), tensor.n_stored(), end);
      if (!data.ok()) return Error(data.status(), tensor.entry);
      const std::uint64_t n_threads =
          std::min({std::uint64_t{values_.options_.n_threads},
                    tensor.head.raw_length / kBytesPerThread,
                    std::uint64_t{tensor.head.chunks.size()}});
      Status status;
      // What fails is decoded again, one chunk after the other, to say where.
      if (n_threads < 2 ||
          !DecodeInParallel(tensor.head, static_cast<unsigned>(n_threads),
                            data.value(), definition->item_size, base,
                            buffer->bytes())) {
        status = DecodeTensor(tensor.head, data.value(), definition->item_size,
                              base, buffer->bytes());
      }
      shard_.file().Forget();
      if (!status.ok()) {
        return InRecord(status, shard_.file().name(), tensor.entry.offset,
                        limits::kRecordHeader + tensor.head.data_offset +
                            status.offset().value_or(0));
      }
      return std::shared_ptr<const ValueBuffer>(buffer);
    } catch (const std::bad_alloc&) {
      return Error(Status::ResourceExhausted(
                       "no memory for a tensor of " +
                       std::to_string(tensor.head.raw_length) + " bytes"),
                   tensor.entry);
    }
  }

  TensorValues& values_;
  const std::span<const TensorEntry> tensors_;
  const Definitions& definitions_;
  ShardReader& shard_;
  std::shared_ptr<const ValueBuffer> base_;
};

Result<TensorValue> TensorValues::Read(std::span<const TensorEntry> tensors,
                                       std::size_t i,
                                       const Definitions& definitions,
                                       ShardReader* shard) {
  // Values are read long after the scan, and of a growing file.
  shard->file().Forget();
  shard->Map();
  return TensorReading(this, tensors, definitions, shard).Read(tensors[i]);
}

std::shared_ptr<const ValueBuffer> TensorValues::FindKept(Key key) {
  const auto found = kept_of_key_.find(key);
  if (found == kept_of_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return kept_.front().values;
}

void TensorValues::Keep(Key key, std::shared_ptr<const ValueBuffer> values) {
  const std::uint64_t n_bytes = values->bytes().size();
  if (n_bytes > options_.kept_bytes || kept_of_key_.contains(key)) return;
  kept_bytes_ += n_bytes;
  kept_.push_front({key, std::move(values)});
  kept_of_key_[key] = kept_.begin();
  while (kept_bytes_ > options_.kept_bytes) {
    kept_bytes_ -= kept_.back().values->bytes().size();
    kept_of_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace tdbg

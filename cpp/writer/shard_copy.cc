#include "writer/shard_copy.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/process.h"
#include "writer/index_writer.h"
#include "writer/record_counters.h"
#include "writer/shard_writer.h"

namespace tdbg {
namespace {

// Of the batch of a copy, which needs no more.
constexpr std::uint64_t kQueueBytes = 16ULL << 20;

bool IsOf(const IndexEntry& entry, RecordType type) {
  return entry.header.type == type;
}

// What a copy writes anew, or has no use for.
bool IsFiller(const SealedShard& shard, std::size_t i, bool begins_with_gap) {
  const IndexEntry& entry = shard.entries()[i];
  return IsOf(entry, RecordType::kPad) || (i == 0 && begins_with_gap);
}

void AddTo(const Gap& other, Gap* gap) {
  gap->records += other.records;
  gap->bytes += other.bytes;
  gap->what |= other.what;
  if (other.first_step == kNoStep) return;
  gap->first_step = gap->first_step == kNoStep
                        ? other.first_step
                        : std::min(gap->first_step, other.first_step);
  gap->last_step = std::max(gap->last_step, other.last_step);
}

Gap GapOf(const IndexEntry& entry) {
  return {.first_step = entry.header.step,
          .last_step = entry.header.step,
          .records = 1,
          .bytes = entry.header.payload_length,
          .what = GapBit(entry.header.type)};
}

// The number of each step in its mode, of those that end in the shard.
Result<std::map<std::int64_t, std::int64_t>> ModeSteps(
    const SealedShard& shard) {
  std::map<std::int64_t, std::int64_t> found;
  for (const IndexEntry& entry : shard.entries()) {
    if (!IsOf(entry, RecordType::kStep)) continue;
    const auto payload = shard.Read(entry);
    if (!payload.ok()) return payload.status();
    const auto step = DecodeStep(payload.value());
    if (!step.ok()) return step.status();
    found[entry.header.step] = step.value().mode_step;
  }
  return found;
}

Result<TensorHead> HeadOf(const SealedShard& shard, const IndexEntry& entry) {
  const auto payload = shard.Read(entry);
  if (!payload.ok()) return payload.status();
  return DecodeTensorHead(payload.value(), entry.header.payload_length);
}

// Values that stay, with those that they are stored as differences to.
Status KeepTensors(const SealedShard& shard, std::int64_t every,
                   std::vector<bool>* kept) {
  if (every == 0) return Status::Ok();
  const auto steps = ModeSteps(shard);
  if (!steps.ok()) return steps.status();
  std::set<std::uint64_t> bases;
  const auto& entries = shard.entries();
  for (std::size_t i = entries.size(); i-- > 0;) {
    const IndexEntry& entry = entries[i];
    if (!IsOf(entry, RecordType::kTensor)) continue;
    const auto step = steps.value().find(entry.header.step);
    // Of a step that ends in the next shard, nobody knows the number here.
    const bool is_due =
        step == steps.value().end() || step->second % every == 0;
    if (!is_due && !bases.contains(entry.header.sequence)) continue;
    (*kept)[i] = true;
    const auto head = HeadOf(shard, entry);
    if (!head.ok()) return head.status();
    if (head.value().base_sequence != 0) {
      bases.insert(head.value().base_sequence);
    }
  }
  return Status::Ok();
}

// The last step that ends in the sources.
std::int64_t LastEnded(std::span<const SealedShard> sources) {
  std::int64_t last = kNoStep;
  for (const SealedShard& shard : sources) {
    for (const IndexEntry& entry : shard.entries()) {
      if (IsOf(entry, RecordType::kStep)) {
        last = std::max(last, entry.header.step);
      }
    }
  }
  return last;
}

// Of one source, under a rule that leaves all out.
std::vector<bool> KeepEvents(const SealedShard& shard, std::int64_t last_ended,
                             bool begins_with_gap) {
  const auto& entries = shard.entries();
  std::vector<bool> kept(entries.size());
  bool needs_definitions = false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (IsFiller(shard, i, begins_with_gap)) continue;
    const bool goes_on =
        last_ended != kNoStep && entries[i].header.step > last_ended;
    kept[i] = goes_on || IsOf(entries[i], RecordType::kEvent) ||
              IsOf(entries[i], RecordType::kGap);
    needs_definitions |= goes_on;
  }
  for (std::size_t i = 0; needs_definitions && i < entries.size(); ++i) {
    if (IsOf(entries[i], RecordType::kDefinition)) kept[i] = true;
  }
  return kept;
}

Result<std::vector<bool>> KeepAllButValues(const SealedShard& shard,
                                           std::int64_t every,
                                           bool begins_with_gap) {
  const auto& entries = shard.entries();
  std::vector<bool> kept(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    kept[i] = !IsOf(entries[i], RecordType::kTensor) &&
              !IsFiller(shard, i, begins_with_gap);
  }
  TDBG_RETURN_IF_ERROR(KeepTensors(shard, every, &kept));
  return kept;
}

Status CopyTensor(const SealedShard& shard, const IndexEntry& entry,
                  const std::map<std::uint64_t, std::uint64_t>& renumbered,
                  ShardWriter* out) {
  auto head = HeadOf(shard, entry);
  if (!head.ok()) return head.status();
  std::uint64_t& base = head.value().base_sequence;
  if (base != 0) {
    const auto found = renumbered.find(base);
    if (found == renumbered.end()) {
      return Status::Corruption("the base of a tensor is missing",
                                entry.offset);
    }
    base = found->second;
  }
  return out->AppendStoredTensor(
      entry.header.step, head.value(),
      entry.header.payload_length - entry.header.checked_length,
      [&](std::uint64_t offset, std::span<std::byte> bytes) {
        return shard.ReadData(entry, offset, bytes);
      });
}

Status CopyRecords(const SealedShard& shard, const std::vector<bool>& kept,
                   ShardWriter* out) {
  std::map<std::uint64_t, std::uint64_t> renumbered;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    const IndexEntry& entry = shard.entries()[i];
    if (IsOf(entry, RecordType::kTensor)) {
      renumbered[entry.header.sequence] = out->next_sequence();
      TDBG_RETURN_IF_ERROR(CopyTensor(shard, entry, renumbered, out));
      continue;
    }
    const auto payload = shard.Read(entry);
    if (!payload.ok()) return payload.status();
    out->Append(entry.header.type, entry.header.step, entry.header.subject,
                payload.value(), entry.call, entry.micro_batch);
    if (out->batch_is_full()) TDBG_RETURN_IF_ERROR(out->WriteBatch());
  }
  return Status::Ok();
}

}  // namespace

Result<std::optional<Gap>> RemovedFrom(const SealedShard& shard) {
  const auto& entries = shard.entries();
  if (entries.empty() || !IsOf(entries.front(), RecordType::kGap)) {
    return std::optional<Gap>();
  }
  const auto payload = shard.Read(entries.front());
  if (!payload.ok()) return payload.status();
  const auto gap = DecodeGap(payload.value());
  if (!gap.ok()) return gap.status();
  if (gap.value().reason != GapReason::kRetention) return std::optional<Gap>();
  return std::optional<Gap>(gap.value());
}

Result<CopyPlan> PlanCopy(std::span<const SealedShard> sources,
                          const CopyRule& rule) {
  CopyPlan plan;
  plan.gap.reason = GapReason::kRetention;
  plan.gap.first_sequence = sources.front().header().first_sequence;
  const std::int64_t last_ended = LastEnded(sources);
  for (const SealedShard& shard : sources) {
    const auto removed = RemovedFrom(shard);
    if (!removed.ok()) return removed.status();
    const bool begins_with_gap = removed.value().has_value();
    if (begins_with_gap) {
      AddTo(*removed.value(), &plan.gap);
      plan.gap.first_sequence =
          std::min(plan.gap.first_sequence, removed.value()->first_sequence);
    }
    std::vector<bool> kept;
    if (rule.is_all) {
      kept = KeepEvents(shard, last_ended, begins_with_gap);
    } else {
      auto chosen = KeepAllButValues(shard, rule.every, begins_with_gap);
      if (!chosen.ok()) return chosen.status();
      kept = std::move(chosen).value();
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const IndexEntry& entry = shard.entries()[i];
      plan.n_kept += kept[i] ? 1 : 0;
      if (kept[i] || IsFiller(shard, i, begins_with_gap)) continue;
      plan.n_bytes += entry.header.payload_length;
      if (GapBit(entry.header.type) != 0) AddTo(GapOf(entry), &plan.gap);
    }
    plan.kept.push_back(std::move(kept));
  }
  // A gap, `index` and `end` are written, too.
  plan.gap.end_sequence = sources.back().end_sequence() - plan.n_kept - 3;
  return plan;
}

Status WriteCopy(FileSystem* file_system, std::span<const SealedShard> sources,
                 const CopyPlan& plan, const std::string& shard_path,
                 const std::string& index_path,
                 const std::function<void()>& progress) {
  FileHeader header = sources.front().header();  // It says when all began.
  header.shard_number = sources.back().header().shard_number;
  header.salt = RandomBits();
  header.first_sequence = plan.gap.end_sequence;
  ShardWriter out(kQueueBytes, progress);
  out.set_reserve(false);
  TDBG_RETURN_IF_ERROR(out.Open(file_system, shard_path, header));
  out.Append(RecordType::kGap, plan.gap.first_step, 0, EncodeGap(plan.gap));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    TDBG_RETURN_IF_ERROR(CopyRecords(sources[i], plan.kept[i], &out));
  }
  TDBG_RETURN_IF_ERROR(out.Seal(sources.back().end().reason));
  if (out.next_sequence() != sources.back().end_sequence()) {
    return Status::Corruption(shard_path + ": the records do not add up", 0);
  }
  TDBG_RETURN_IF_ERROR(out.Sync());
  TDBG_RETURN_IF_ERROR(out.Close());
  if (out.index_file().empty()) return Status::Ok();
  return WriteIndexFile(file_system, index_path, out.index_file());
}

}  // namespace tdbg

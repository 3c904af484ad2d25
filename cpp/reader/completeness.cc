#include "reader/completeness.h"

#include <algorithm>
#include <utility>

#include "format/names.h"
#include "reader/index_reader.h"

namespace tdbg {
namespace {

bool IsReadable(const Shard& shard) {
  return shard.reader().state() == ShardState::kGrowing ||
         shard.reader().state() == ShardState::kSealed;
}

bool IsSealed(const Shard& shard) {
  return shard.reader().state() == ShardState::kSealed;
}

// What is left of `hole` when the records of the gaps are taken away, which are
// those at its end: a writer loses what it wrote last.
Hole WithoutGaps(Hole hole, std::span<const Gap> gaps) {
  for (const Gap& gap : gaps) {
    if (gap.end_sequence >= hole.end_sequence) {
      hole.end_sequence = std::max(
          hole.first_sequence, std::min(hole.end_sequence, gap.first_sequence));
    }
  }
  return hole;
}

std::string Range(const Hole& hole) {
  if (hole.end_sequence - hole.first_sequence == 1) {
    return "record " + std::to_string(hole.first_sequence) + " is";
  }
  return "records " + std::to_string(hole.first_sequence) + " to " +
         std::to_string(hole.end_sequence - 1) + " are";
}

}  // namespace

void Completeness::Check() {
  FollowSequences();
  std::erase_if(jumps_,
                [this](const Jump& jump) { return Settle(jump, false); });
  if (commit_ == nullptr) return;
  CompareIndexes();
  CompareCommit();
}

void Completeness::FollowSequences() {
  auto& shards = shards_->shards();
  while (followed_ < shards.size()) {
    const Shard& shard = *shards[followed_].shard;
    const bool is_last = followed_ + 1 == shards.size();
    if (IsReadable(shard)) {
      const std::uint64_t first = shard.reader().header().first_sequence;
      // The very first shard says itself where it begins.
      const bool is_first = !has_read_ && shard.number() == 1;
      if (!has_begun_ && !is_first && first > expected_) {
        jumps_.push_back({.hole = {expected_, first},
                          .before = last_read_,
                          .after = followed_});
      }
      has_begun_ = true;
    }
    if (is_last) return;
    if (IsReadable(shard)) {
      expected_ = shard.reader().next_sequence();
      last_read_ = followed_;
      has_read_ = true;
    }
    ++followed_;
    has_begun_ = false;
  }
}

bool Completeness::Settle(const Jump& jump, bool is_final) {
  auto& shards = shards_->shards();
  Hole missing = jump.hole;
  bool is_decided = is_final;
  // A shard that was abandoned before anything in it could be read leaves it to
  // the next one to tell.
  for (std::size_t i = jump.after; i < shards.size(); ++i) {
    Shard& shard = *shards[i].shard;
    if (!IsReadable(shard)) continue;
    const auto gaps = shard.Gaps();
    missing = WithoutGaps(missing, gaps);
    shards_->Retire(&shards[i]);
    if (missing.first_sequence == missing.end_sequence) return true;
    // Gaps come first, so that what follows without one was not lost by the
    // writer.
    const ShardReader& reader = shard.reader();
    const std::uint64_t n_records =
        reader.next_sequence() - reader.header().first_sequence;
    if (IsSealed(shard) || n_records > gaps.size()) {
      is_decided = true;
      break;
    }
  }
  const Liveness liveness =
      commit_ == nullptr ? Liveness::kUnknown : commit_->liveness();
  is_decided = is_decided || liveness == Liveness::kClosed ||
               liveness == Liveness::kDead;
  if (!is_decided) return false;
  between_.push_back(missing);
  ReportJump(jump, missing);
  return true;
}

void Completeness::ReportJump(const Jump& jump, const Hole& missing) {
  const auto& shards = shards_->shards();
  const Shard& after = *shards[jump.after].shard;
  const std::string told =
      Range(missing) +
      " not there, and no gap tells why: " + ShardName(after.number(), ".tds") +
      " begins with record " + std::to_string(jump.hole.end_sequence);
  for (std::size_t i = jump.before; i < jump.after; ++i) {
    const Shard& shard = *shards[i].shard;
    const std::string name = ShardName(shard.number(), ".tds");
    switch (shard.reader().state()) {
      case ShardState::kUnborn:
        return Report(name, 0, "the shard is lost: " + told);
      case ShardState::kGrowing:
        return Report(name, shard.reader().taken_to(),
                      "the end of the shard is lost: " + told);
      case ShardState::kRefused:
        return;  // This was reported.
      case ShardState::kSealed:
        break;
    }
  }
  // So were shards that are missing between them.
  if (jump.before == jump.after ||
      after.number() != shards[jump.before].shard->number() + 1) {
    return;
  }
  Report(ShardName(after.number(), ".tds"), 0, told);
}

void Completeness::CompareIndexes() {
  for (ListedShard& listed : shards_->shards()) {
    Shard& shard = *listed.shard;
    const ShardState state = shard.reader().state();
    if (state != ShardState::kGrowing && state != ShardState::kUnborn) continue;
    const std::uint32_t number = shard.number();
    if (reported_.contains(ShardName(number, ".tds"))) continue;
    if (!files_->HasIndex(number)) continue;
    const auto salt =
        IsReadable(shard)
            ? std::optional<std::uint64_t>(shard.reader().header().salt)
            : std::nullopt;
    const auto length =
        IndexReader::SealedLength(&files_->directory(), number, salt);
    if (!length) continue;
    // The shard was sealed before its index was written.  That may have been
    // since we looked at it: then it is as long as that now, and will have an
    // end when it is looked at again.
    const std::uint64_t size = files_->ShardSize(number).value_or(0);
    if (size < *length) {
      ReportShort(shard, "its index", *length);
    } else if (!suspects_.insert(number).second) {
      Report(ShardName(number, ".tds"), shard.reader().taken_to(),
             "its index says that it was sealed at " + std::to_string(*length) +
                 " bytes, and no end record is there");
    }
  }
  // Indexes of shards beyond the last.
  const std::uint32_t last_index = files_->LastIndex();
  const std::uint32_t last = shards_->empty() ? 0 : shards_->last().number();
  if (last_index > last && !files_->ShardSize(last_index)) {
    Report(ShardName(last_index, ".tds"), 0,
           "the shard is not there, and its index is");
  }
}

void Completeness::CompareCommit() {
  if (!commit_->slot() || !files_->directory().ShowsAll()) return;
  const CommitSlot& slot = *commit_->slot();
  // What was visible outlives the process, and what was durable the machine.
  const bool survives =
      slot.state == WriterState::kClosed || commit_->IsOnThisMachine();
  const std::uint64_t length =
      survives ? std::max(slot.visible, slot.durable) : slot.durable;
  std::uint32_t number = slot.shard_number;
  // Of a shard of which nothing was durable, not even its name is.
  if (length == 0 && number > 0) --number;
  const std::uint32_t last = shards_->empty() ? 0 : shards_->last().number();
  if (number > last && !files_->ShardSize(number)) {
    return Report(
        ShardName(number, ".tds"), 0,
        "the shard is not there, and COMMIT says that it was written");
  }
  if (number == slot.shard_number) CompareLength(number, length);
}

void Completeness::CompareLength(std::uint32_t number, std::uint64_t length) {
  for (ListedShard& listed : shards_->shards()) {
    Shard& shard = *listed.shard;
    if (shard.number() != number) continue;
    if (shard.reader().state() == ShardState::kRefused) return;
    if (shard.was_copied()) return;  // It was longer.
    const auto size = files_->ShardSize(number);
    if (size && *size < length) ReportShort(shard, "COMMIT", length);
    return;
  }
}

void Completeness::CheckWalked() {
  const bool is_alive =
      commit_ != nullptr && (commit_->liveness() == Liveness::kRunning ||
                             commit_->liveness() == Liveness::kStalled);
  std::erase_if(jumps_, [&](const Jump& jump) {
    return Settle(jump, /*is_final=*/!is_alive);
  });
  if (commit_ == nullptr || !commit_->slot() ||
      !files_->directory().ShowsAll()) {
    return;
  }
  const CommitSlot& slot = *commit_->slot();
  // What was visible on a machine that went down may be gone with it; whoever
  // wants to know whether all is there is told so.
  CompareLength(slot.shard_number, slot.visible);
  const bool is_whole = std::all_of(
      problems_->begin(), problems_->end(),
      [](const Problem& p) { return p.kind == ProblemKind::kTornTail; });
  if (!is_whole) return;
  std::uint64_t n_offered = 0;
  for (const ListedShard& listed : shards_->shards()) {
    n_offered += listed.shard->reader().n_offered();
    for (const Gap& gap : listed.shard->Gaps()) {
      if (gap.reason == GapReason::kRetention) n_offered += gap.records;
    }
  }
  // Shards that were abandoned may hold more.
  if (n_offered >= slot.written) return;
  Report("COMMIT", 0,
         "it says that " + std::to_string(slot.written) +
             " records were written, and " + std::to_string(n_offered) +
             " are there");
}

// Whether the shard's name still is that of the file that was read.
bool Completeness::HasItsName(const Shard& shard) const {
  const std::uint64_t read = shard.reader().file().inode();
  if (read == 0) return true;
  const auto there =
      files_->directory().InodeOf(ShardName(shard.number(), ".tds"));
  return !there.ok() || there.value() == read;
}

void Completeness::ReportShort(const Shard& shard, const std::string& witness,
                               std::uint64_t length) {
  // The size is that of the name.  Retention may have put a copy there since.
  if (!HasItsName(shard)) return;
  Report(ShardName(shard.number(), ".tds"), shard.reader().taken_to(),
         "the end of the shard is lost: it has " +
             std::to_string(files_->ShardSize(shard.number()).value_or(0)) +
             " bytes, and " + witness + " says that there were " +
             std::to_string(length));
}

void Completeness::Report(const std::string& file, std::uint64_t offset,
                          std::string message) {
  if (!reported_.insert(file).second) return;
  problems_->push_back(
      {ProblemKind::kMissing, file, offset, 0, std::move(message)});
}

std::vector<Hole> Completeness::Holes() const {
  std::vector<Hole> holes = between_;
  for (const ListedShard& listed : shards_->shards()) {
    const auto& within = listed.shard->holes();
    holes.insert(holes.end(), within.begin(), within.end());
  }
  // Until it is known whether the writer lost them, they count as missing.
  for (const Jump& jump : jumps_) holes.push_back(jump.hole);
  std::sort(holes.begin(), holes.end(), [](const Hole& a, const Hole& b) {
    return a.first_sequence < b.first_sequence;
  });
  return holes;
}

bool Completeness::EndIsUnknown() const {
  if (commit_ != nullptr && commit_->slot()) return false;
  if (shards_->empty()) return true;
  const Shard& last = shards_->last();
  return !IsSealed(last) || last.reader().end().reason != EndReason::kClosed;
}

}  // namespace tdbg

#include "writer/retention.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "format/names.h"
#include "writer/record_counters.h"

namespace tdbg {
namespace {

constexpr std::string_view kShardEnding = ".tds";
constexpr std::string_view kIndexEnding = ".tdi";

// The number in 000001.tds, or nothing.
std::optional<std::uint32_t> NumberOf(std::string_view name) {
  if (!name.ends_with(kShardEnding)) return std::nullopt;
  std::uint32_t number = 0;
  const char* last = name.data() + name.size() - kShardEnding.size();
  const auto [end, error] = std::from_chars(name.data(), last, number);
  if (error != std::errc() || end != last || number == 0) return std::nullopt;
  if (ShardName(number, kShardEnding.data()) != name) return std::nullopt;
  return number;
}

std::string PathOf(const std::string& directory, std::uint32_t number,
                   std::string_view ending) {
  return directory + "/" + ShardName(number, ending.data());
}

}  // namespace

// One pass: the files as they are, and what becomes of them.
class Retention::Run {
 public:
  Run(Retention* retention, const Pass& pass)
      : retention_(retention),
        file_system_(retention->file_system_),
        options_(retention->options_),
        pass_(pass) {}

  RetentionReport Execute() {
    report_.status = Try();
    report_.n_bytes = n_bytes_;
    return std::move(report_);
  }

 private:
  Status Try() {
    for (const std::string& path : pass_.directories) {
      TDBG_RETURN_IF_ERROR(LookAt(path));
    }
    TDBG_RETURN_IF_ERROR(RemoveOldValues());
    if (options_.max_bytes == 0) return Status::Ok();
    const std::uint64_t limit =
        options_.max_bytes - std::min(options_.max_bytes, pass_.headroom);
    bool goes_on = true;
    while (goes_on && n_bytes_ > limit) {
      TDBG_RETURN_IF_ERROR(Shrink(&goes_on));
    }
    return Status::Ok();
  }

  // --- Looking ---------------------------------------------------------------

  Status LookAt(const std::string& path) {
    Writer writer{.path = path, .lock = {}, .shards = {}};
    if (!pass_.is_dry) {
      auto lock = DirectoryLock::Take(file_system_, path);
      if (lock.ok()) writer.lock.emplace(std::move(lock).value());
    }
    const auto names = ListDirectory(file_system_, path);
    if (!names.ok()) return names.status();
    for (const std::string& name : names.value()) {
      TDBG_RETURN_IF_ERROR(LookAtFile(name, &writer));
    }
    if (writer.lock || pass_.is_dry) {
      RemoveSuperseded(&writer);
      writers_.push_back(std::move(writer));
    }
    return Status::Ok();
  }

  Status LookAtFile(const std::string& name, Writer* writer) {
    const std::string path = writer->path + "/" + name;
    const bool is_mine = writer->lock.has_value();
    if (is_mine && name.ends_with(kNewEnding)) {
      return RemoveFile(file_system_, path);  // Of a pass that was cut short.
    }
    const auto size = FileSize(file_system_, path);
    if (!size.ok()) return Status::Ok();  // It has gone by now.
    n_bytes_ += size.value();
    if (is_mine && name.ends_with(kOldEnding)) {
      return LookAtOld(path, size.value());
    }
    const auto number = NumberOf(name);
    if (!number) return Status::Ok();
    auto known = retention_->known_.find(path);
    if (known == retention_->known_.end()) {
      const auto facts = retention_->FactsOf(writer->path, *number);
      // What is not sealed, or damaged, stays.
      if (!facts.ok()) return Status::Ok();
      known = retention_->known_.emplace(path, facts.value()).first;
    }
    writer->shards.emplace(*number, known->second);
    return Status::Ok();
  }

  Status LookAtOld(const std::string& path, std::uint64_t n_bytes) {
    const auto now = Clock::now();
    const auto since =
        retention_->left_behind_.try_emplace(path, now).first->second;
    if (now - since >= retention_->grace_) return RemoveOld(path, n_bytes);
    old_.emplace_back(path, n_bytes);
    return Status::Ok();
  }

  Status RemoveOld(const std::string& path, std::uint64_t n_bytes) {
    TDBG_RETURN_IF_ERROR(RemoveFile(file_system_, path));
    retention_->left_behind_.erase(path);
    n_bytes_ -= std::min(n_bytes, n_bytes_);
    return Status::Ok();
  }

  // Shards that a later copy replaces: a pass was cut short.
  void RemoveSuperseded(Writer* writer) {
    std::erase_if(writer->shards, [&](const auto& each) {
      return HasLaterStub(*writer, each.first, each.second.first_sequence) &&
             (pass_.is_dry || Unlink(*writer, each.first).ok());
    });
  }

  static bool HasLaterStub(const Writer& writer, std::uint32_t number,
                           std::uint64_t first_sequence) {
    return std::any_of(writer.shards.upper_bound(number), writer.shards.end(),
                       [&](const auto& each) {
                         const Facts& facts = each.second;
                         return facts.is_stub && facts.removed &&
                                facts.removed->first_sequence <= first_sequence;
                       });
  }

  // --- Deciding --------------------------------------------------------------

  Status RemoveOldValues() {
    if (!options_.last_steps) return Status::Ok();
    const std::int64_t last = pass_.newest_step - *options_.last_steps;
    for (Writer& writer : writers_) {
      for (auto& [number, facts] : writer.shards) {
        if (facts.n_tensors == 0 || facts.was_aged || facts.removed ||
            facts.last_value > last) {
          continue;
        }
        TDBG_RETURN_IF_ERROR(Replace(
            &writer, number, {.is_all = false, .every = options_.every}));
      }
    }
    return Status::Ok();
  }

  // Makes the oldest thing go that can; clears `goes_on` where nothing can.
  Status Shrink(bool* goes_on) {
    if (!old_.empty()) {
      for (const auto& [path, n_bytes] : std::exchange(old_, {})) {
        TDBG_RETURN_IF_ERROR(RemoveOld(path, n_bytes));
      }
      return Status::Ok();
    }
    for (const bool is_all : {false, true}) {
      for (Writer& writer : writers_) {
        for (auto& [number, facts] : writer.shards) {
          if (is_all ? facts.is_stub : facts.n_tensors == 0) continue;
          return Replace(&writer, number, {.is_all = is_all, .every = 0});
        }
      }
    }
    *goes_on = false;
    return Status::Ok();
  }

  // --- Doing -----------------------------------------------------------------

  // The shard, and under a rule that leaves all out those before it that a copy
  // replaces, too.
  [[nodiscard]] static std::vector<std::uint32_t> SourcesOf(
      const Writer& writer, std::uint32_t number, const CopyRule& rule) {
    std::vector<std::uint32_t> numbers;
    if (rule.is_all) {
      for (std::uint32_t each = number; each-- > 0;) {
        const auto found = writer.shards.find(each);
        if (found == writer.shards.end() || !found->second.is_stub) break;
        numbers.insert(numbers.begin(), each);
      }
    }
    numbers.push_back(number);
    return numbers;
  }

  Status Replace(Writer* writer, std::uint32_t number, const CopyRule& rule) {
    const auto numbers = SourcesOf(*writer, number, rule);
    std::vector<SealedShard> sources;
    for (const std::uint32_t each : numbers) {
      auto shard = SealedShard::Open(file_system_,
                                     PathOf(writer->path, each, kShardEnding));
      if (!shard.ok()) return shard.status();
      sources.push_back(std::move(shard).value());
    }
    const auto plan = PlanCopy(sources, rule);
    if (!plan.ok()) return plan.status();
    Facts& facts = writer->shards.at(number);
    facts.was_aged = true;
    facts.is_stub |= rule.is_all;
    retention_->known_[PathOf(writer->path, number, kShardEnding)] = facts;
    if (plan.value().n_bytes == 0 && numbers.size() == 1) return Status::Ok();
    const std::uint64_t before = n_bytes_;
    if (pass_.is_dry) {
      Pretend(numbers, plan.value(), rule, writer);
    } else {
      TDBG_RETURN_IF_ERROR(Write(sources, plan.value(), numbers, writer));
    }
    report_.removals.push_back({.directory = writer->path,
                                .number = number,
                                .n_bytes = before - std::min(before, n_bytes_),
                                .is_all = rule.is_all,
                                .gap = plan.value().gap});
    return Status::Ok();
  }

  void Pretend(const std::vector<std::uint32_t>& numbers, const CopyPlan& plan,
               const CopyRule& rule, Writer* writer) {
    n_bytes_ -= std::min(n_bytes_, plan.n_bytes);
    Facts& facts = writer->shards.at(numbers.back());
    facts.n_tensors = 0;
    facts.is_stub = rule.is_all;
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      writer->shards.erase(numbers[i]);
    }
    if (rule.is_all) n_bytes_ -= std::min(n_bytes_, IndexBytes(*writer, facts));
  }

  [[nodiscard]] std::uint64_t IndexBytes(const Writer& writer,
                                         const Facts& facts) const {
    return SizeOf(PathOf(writer.path, facts.number, kIndexEnding));
  }

  Status Write(const std::vector<SealedShard>& sources, const CopyPlan& plan,
               const std::vector<std::uint32_t>& numbers, Writer* writer) {
    const std::uint32_t number = numbers.back();
    const std::string shard = PathOf(writer->path, number, kShardEnding);
    const std::string index = PathOf(writer->path, number, kIndexEnding);
    const std::string new_shard = shard + kNewEnding;
    const std::string new_index = index + kNewEnding;
    Status status = WriteCopy(file_system_, sources, plan, new_shard, new_index,
                              retention_->progress_);
    if (status.ok()) status = Exchange(shard, new_shard);
    if (!status.ok()) {
      (void)RemoveFile(file_system_, new_shard);
      (void)RemoveFile(file_system_, new_index);
      return status;
    }
    // An index that does not fit its shard is none to a reader.
    if (const Status moved = Exchange(index, new_index); !moved.ok()) {
      (void)RemoveFile(file_system_, index);
    }
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      TDBG_RETURN_IF_ERROR(Unlink(*writer, numbers[i]));
      writer->shards.erase(numbers[i]);
    }
    retention_->known_.erase(shard);
    auto facts = retention_->FactsOf(writer->path, number);
    if (!facts.ok()) return facts.status();
    facts.value().was_aged = true;
    facts.value().is_stub |= writer->shards.at(number).is_stub;
    retention_->known_[shard] = writer->shards[number] = facts.value();
    return Status::Ok();
  }

  // The new file takes the name; the old one gets another, for a while.
  Status Exchange(const std::string& path, const std::string& new_path) {
    const std::uint64_t n_bytes = SizeOf(new_path);
    TDBG_RETURN_IF_ERROR(LeaveBehind(path, SizeOf(path), /*moves=*/false));
    TDBG_RETURN_IF_ERROR(RenameFile(file_system_, new_path, path));
    n_bytes_ += n_bytes;
    return Status::Ok();
  }

  // 0 where there is no such file.
  [[nodiscard]] std::uint64_t SizeOf(const std::string& path) const {
    const auto size = FileSize(file_system_, path);
    return size.ok() ? size.value() : 0;
  }

  Status Unlink(const Writer& writer, std::uint32_t number) {
    for (const std::string_view ending : {kShardEnding, kIndexEnding}) {
      const std::string path = PathOf(writer.path, number, ending);
      const std::uint64_t n_bytes = SizeOf(path);
      if (n_bytes == 0) continue;  // An index may be missing.
      TDBG_RETURN_IF_ERROR(LeaveBehind(path, n_bytes, /*moves=*/true));
      retention_->known_.erase(path);
    }
    return Status::Ok();
  }

  // Counts the file out, unless it keeps another name.
  Status LeaveBehind(const std::string& path, std::uint64_t n_bytes,
                     bool moves) {
    const std::string old = path + kOldEnding;
    if (retention_->grace_ == std::chrono::seconds::zero()) {
      n_bytes_ -= std::min(n_bytes, n_bytes_);
      return moves ? RemoveFile(file_system_, path) : Status::Ok();
    }
    const auto earlier =
        std::find_if(old_.begin(), old_.end(),
                     [&](const auto& each) { return each.first == old; });
    if (earlier != old_.end()) {
      TDBG_RETURN_IF_ERROR(RemoveOld(earlier->first, earlier->second));
      old_.erase(earlier);
    }
    if (moves) {
      TDBG_RETURN_IF_ERROR(RenameFile(file_system_, path, old));
    } else if (n_bytes != 0) {
      TDBG_RETURN_IF_ERROR(LinkFile(file_system_, path, old));
    }
    old_.emplace_back(old, n_bytes);
    retention_->left_behind_[old] = Clock::now();
    return Status::Ok();
  }

  Retention* const retention_;
  FileSystem* const file_system_;
  const RetentionOptions& options_;
  const Pass& pass_;

  std::vector<Writer> writers_;
  std::vector<std::pair<std::string, std::uint64_t>> old_;  // Paths and bytes.
  std::uint64_t n_bytes_ = 0;  // Of all files of all writers.
  RetentionReport report_;
};

RetentionReport Retention::Apply(const Pass& pass) {
  return Run(this, pass).Execute();
}

Result<Retention::Facts> Retention::FactsOf(const std::string& directory,
                                            std::uint32_t number) const {
  const auto shard =
      SealedShard::Open(file_system_, PathOf(directory, number, kShardEnding));
  if (!shard.ok()) return shard.status();
  Facts facts;
  facts.number = number;
  facts.n_bytes = shard.value().n_bytes();
  facts.first_sequence = shard.value().header().first_sequence;
  const auto removed = RemovedFrom(shard.value());
  if (!removed.ok()) return removed.status();
  facts.removed = removed.value();
  facts.is_stub = facts.removed &&
                  (facts.removed->what & ~GapBit(RecordType::kTensor)) != 0;
  for (const IndexEntry& entry : shard.value().entries()) {
    if (entry.header.type != RecordType::kTensor) continue;
    ++facts.n_tensors;
    facts.last_value = std::max(facts.last_value, entry.header.step);
  }
  // What goes on in the next shard stays.
  if (facts.is_stub) facts.n_tensors = 0;
  return facts;
}

}  // namespace tdbg

// ShardList is the shards of a writer directory in the order of their numbers,
// as far as they were found.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "reader/shard.h"

namespace tdbg {

// A shard, and what stands before it over all shards.
struct ListedShard {
  std::unique_ptr<Shard> shard;
  std::uint64_t first_row = 0;
  std::uint64_t first_tensor = 0;
  std::uint64_t first_scalar = 0;
  std::uint64_t first_step = 0;
  // As of the last question to it.
  std::uint64_t asked_at = 0;
  std::uint64_t n_cached = 0;
  std::uint64_t n_mapped = 0;
  std::uint64_t n_made = 0;  // Likewise, of cells.
};

class ShardList {
 public:
  // All shards together hold at most so many bytes of indexes.
  explicit ShardList(std::uint64_t cached_bytes)
      : cached_bytes_(cached_bytes) {}

  // Adds the next shard: nothing is added to those before it any more.
  void Add(std::unique_ptr<Shard> shard);

  [[nodiscard]] bool empty() const { return shards_.empty(); }
  [[nodiscard]] Shard& last() { return *shards_.back().shard; }
  std::vector<ListedShard>& shards() { return shards_; }

  [[nodiscard]] std::uint64_t n_rows() const;
  [[nodiscard]] std::uint64_t n_tensors() const;
  [[nodiscard]] std::uint64_t n_scalars() const;
  [[nodiscard]] std::uint64_t n_steps() const;

  // Bytes of their tables that are in memory.
  [[nodiscard]] std::uint64_t n_held() const;

  // The shards whose files were opened, with the inodes of these.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint64_t>> Inodes()
      const;

  // The shard that holds the tensor of this number.
  // REQUIRES: i < n_tensors().
  ListedShard& OfTensor(std::uint64_t i);

  // The shard of this number.
  // REQUIRES: it was added.
  ListedShard& OfNumber(std::uint32_t number);

  // After a question to a shard.  Descriptors are few: gives up those of one
  // that does not grow; and memory is: gives up the tables and the maps of
  // those that were not asked for longest, if all have too much.
  void Retire(ListedShard* listed);

 private:
  // Bytes of maps that all shards together hold at most.
  static constexpr std::uint64_t kMappedBytes = 64 << 20;

  // Makes the shards but this one and the last give up what `give_up` does,
  // until all hold at most `limit`, as `held` tells.
  void Limit(std::uint64_t limit, const ListedShard* asked,
             std::uint64_t ListedShard::* held, std::uint64_t* total,
             void (Shard::*give_up)());

  const std::uint64_t cached_bytes_;
  std::uint64_t n_questions_ = 0;
  std::uint64_t n_cached_ = 0;
  std::uint64_t n_mapped_ = 0;
  std::vector<ListedShard> shards_;
};

// A table over all shards, put together as far as it was asked for.
template <typename Entry>
class Gathered {
 public:
  using Source = std::span<const Entry> (Shard::*)();

  const std::vector<Entry>& All(ShardList* list, Source source) {
    auto& shards = list->shards();
    while (next_ < shards.size()) {
      const auto table = (*shards[next_].shard.*source)();
      if (taken_ < table.size()) {
        entries_.insert(entries_.end(),
                        table.begin() + static_cast<std::ptrdiff_t>(taken_),
                        table.end());
        taken_ = table.size();
      }
      list->Retire(&shards[next_]);
      if (next_ + 1 == shards.size()) break;
      ++next_;
      taken_ = 0;
    }
    return entries_;
  }

 private:
  std::vector<Entry> entries_;
  std::size_t next_ = 0;   // The shard to go on with,
  std::size_t taken_ = 0;  // and how much of it is there.
};

}  // namespace tdbg

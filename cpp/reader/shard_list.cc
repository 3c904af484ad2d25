#include "reader/shard_list.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tdbg {

void ShardList::Add(std::unique_ptr<Shard> shard) {
  ListedShard listed{.shard = std::move(shard),
                     .first_row = n_rows(),
                     .first_tensor = n_tensors(),
                     .first_scalar = n_scalars(),
                     .first_step = n_steps()};
  shards_.push_back(std::move(listed));
}

std::uint64_t ShardList::n_rows() const {
  if (shards_.empty()) return 0;
  return shards_.back().first_row + shards_.back().shard->n_rows();
}
std::uint64_t ShardList::n_tensors() const {
  if (shards_.empty()) return 0;
  return shards_.back().first_tensor + shards_.back().shard->n_tensors();
}
std::uint64_t ShardList::n_scalars() const {
  if (shards_.empty()) return 0;
  return shards_.back().first_scalar + shards_.back().shard->n_scalars();
}
std::uint64_t ShardList::n_steps() const {
  if (shards_.empty()) return 0;
  return shards_.back().first_step + shards_.back().shard->n_steps();
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> ShardList::Inodes() const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> found;
  for (const ListedShard& listed : shards_) {
    const std::uint64_t inode = listed.shard->reader().file().inode();
    if (inode != 0) found.emplace_back(listed.shard->number(), inode);
  }
  return found;
}

std::uint64_t ShardList::n_held() const {
  std::uint64_t n = 0;
  for (const ListedShard& listed : shards_) n += listed.shard->n_held();
  return n;
}

void ShardList::Retire(ListedShard* listed) {
  if (listed == &shards_.back()) return;
  Shard& shard = *listed->shard;
  shard.Retire();
  listed->asked_at = ++n_questions_;
  n_cached_ +=
      shard.n_cached() - std::exchange(listed->n_cached, shard.n_cached());
  n_mapped_ +=
      shard.n_mapped() - std::exchange(listed->n_mapped, shard.n_mapped());
  Limit(cached_bytes_, listed, &ListedShard::n_cached, &n_cached_,
        &Shard::DropTables);
  Limit(kMappedBytes, listed, &ListedShard::n_mapped, &n_mapped_,
        &Shard::Unmap);
}

void ShardList::Limit(std::uint64_t limit, const ListedShard* asked,
                      std::uint64_t ListedShard::* held, std::uint64_t* total,
                      void (Shard::*give_up)()) {
  while (*total > limit) {
    ListedShard* oldest = nullptr;
    for (ListedShard& listed : shards_) {
      if (listed.*held > 0 && &listed != asked &&
          (oldest == nullptr || listed.asked_at < oldest->asked_at)) {
        oldest = &listed;
      }
    }
    if (oldest == nullptr) return;
    (*oldest->shard.*give_up)();
    *total -= std::exchange(oldest->*held, 0);
  }
}

ListedShard& ShardList::OfTensor(std::uint64_t i) {
  TDBG_DCHECK(i < n_tensors());
  // The last one that begins at or before it: of empty ones the last.
  const auto after = std::upper_bound(
      shards_.begin(), shards_.end(), i,
      [](std::uint64_t n, const ListedShard& s) { return n < s.first_tensor; });
  return *(after - 1);
}

ListedShard& ShardList::OfNumber(std::uint32_t number) {
  const auto found =
      std::lower_bound(shards_.begin(), shards_.end(), number,
                       [](const ListedShard& s, std::uint32_t n) {
                         return s.shard->number() < n;
                       });
  TDBG_DCHECK(found != shards_.end() && found->shard->number() == number);
  return *found;
}

}  // namespace tdbg

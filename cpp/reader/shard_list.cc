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

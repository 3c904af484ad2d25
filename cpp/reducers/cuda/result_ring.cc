#include "reducers/cuda/result_ring.h"

#include <algorithm>

#include "base/check.h"

namespace tdbg::cuda {

std::optional<ResultRing::Piece> ResultRing::Take(std::size_t n) {
  n = (n + kAlignment - 1) / kAlignment * kAlignment;
  MutexLock lock(mutex_);
  std::size_t at = 0;
  std::size_t limit = n_bytes_;
  if (!ranges_.empty()) {
    const std::size_t tail = ranges_.front().offset;
    const std::size_t head = ranges_.back().offset + ranges_.back().n;
    const bool wrapped = ranges_.back().offset < tail;
    at = head;
    if (wrapped) limit = tail;
    if (!wrapped && n > n_bytes_ - head) {
      at = 0;
      limit = tail;
    }
  }
  if (n > limit - at) return std::nullopt;
  ranges_.push_back({.offset = at, .n = n, .is_free = false});
  return Piece{
      .offset = at, .n = n, .device = device_ + at, .host = host_ + at};
}

void ResultRing::GiveBack(const Piece& piece) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(
      ranges_.begin(), ranges_.end(),
      [&](const Range& range) { return range.offset == piece.offset; });
  TDBG_DCHECK(found != ranges_.end() && !found->is_free);
  if (found != ranges_.end()) found->is_free = true;
  while (!ranges_.empty() && ranges_.front().is_free) ranges_.pop_front();
}

std::size_t ResultRing::n_out() {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(ranges_.begin(), ranges_.end(),
                    [](const Range& range) { return !range.is_free; }));
}

}  // namespace tdbg::cuda

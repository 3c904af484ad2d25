#include "reader/record_chain.h"

#include <algorithm>
#include <iterator>

namespace tdbg {

void RecordChain::Add(const FoundRecord& record, std::uint64_t end) {
  while (!pending_.empty() && pending_.top().end <= record.offset) {
    Open(pending_.top().node);
    pending_.pop();
  }
  Node node{.record = record};
  const auto level = static_cast<std::uint32_t>(
      std::ranges::lower_bound(lowest_, record.sequence) - lowest_.begin());
  if (level > 0) {
    node.length = level + 1;
    node.previous =
        std::prev(open_.lower_bound({level, record.sequence}))->second;
  }
  pending_.push({end, static_cast<std::uint32_t>(nodes_.size())});
  nodes_.push_back(node);
}

void RecordChain::Open(std::uint32_t node) {
  const auto& [record, length, previous] = nodes_[node];
  const auto lies_before = [&](const auto& other) {
    return nodes_[other.second].record.offset < record.offset;
  };
  auto at = open_.lower_bound({length, record.sequence});
  while (at != open_.end() && at->first.first == length && lies_before(*at)) {
    at = open_.erase(at);
  }
  const bool is_replaced =
      (at != open_.end() && at->first == std::pair(length, record.sequence)) ||
      (at != open_.begin() && std::prev(at)->first.first == length &&
       !lies_before(*std::prev(at)));
  if (is_replaced) return;
  open_.emplace_hint(at, std::pair(length, record.sequence), node);
  if (lowest_.size() < length) lowest_.push_back(record.sequence);
  std::uint64_t& lowest = lowest_[length - 1];
  lowest = std::min(lowest, record.sequence);
}

std::vector<FoundRecord> RecordChain::Longest() {
  for (; !pending_.empty(); pending_.pop()) Open(pending_.top().node);
  std::vector<FoundRecord> chain;
  if (open_.empty()) return chain;
  for (std::uint32_t node = open_.rbegin()->second; node != kNone;
       node = nodes_[node].previous) {
    chain.push_back(nodes_[node].record);
  }
  return chain;
}

}  // namespace tdbg

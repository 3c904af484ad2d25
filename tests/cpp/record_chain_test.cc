// The longest chain of records: those in order are all of it, copies and what
// overlaps are not, and it is the one that comparing all pairs finds.
//
// Seen to fail when: sequences need not ascend; a record may begin before the
// one before it ends; of two chains, the one further back is not taken.

#include "reader/record_chain.h"

#include <algorithm>
#include <random>

#include "testing.h"

namespace tdbg::testing {
namespace {

struct Added {
  FoundRecord record;
  std::uint64_t end = 0;
};
using Sequences = std::vector<std::uint64_t>;

// Sequences of the longest chain of these records, in order.
Sequences ChainOf(const std::vector<Added>& records) {
  RecordChain chain;
  for (const Added& each : records) chain.Add(each.record, each.end);
  Sequences found;
  for (const FoundRecord& each : chain.Longest()) {
    found.push_back(each.sequence);
  }
  std::ranges::reverse(found);
  return found;
}

// The offsets of the longest chain, last first, by comparing all pairs.
std::vector<std::uint64_t> Compared(const std::vector<Added>& records) {
  std::vector<std::size_t> lengths(records.size(), 1);
  std::vector<std::size_t> previous(records.size());
  std::size_t last = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (records[j].end <= records[i].record.offset &&
          records[j].record.sequence < records[i].record.sequence &&
          lengths[j] + 1 >= lengths[i]) {
        lengths[i] = lengths[j] + 1;
        previous[i] = j;
      }
    }
    if (lengths[i] >= lengths[last]) last = i;
  }
  std::vector<std::uint64_t> offsets;
  for (std::size_t n = lengths[last]; n > 0; --n, last = previous[last]) {
    offsets.push_back(records[last].record.offset);
  }
  return offsets;
}

TDBG_TEST(WithoutRecordsThereIsNoChain) {
  EXPECT_TRUE(ChainOf({}).empty());
  EXPECT_FALSE(RecordChain().is_full());
}

TDBG_TEST(RecordsThatFollowEachOtherAreAllOfTheChain) {
  EXPECT_TRUE(ChainOf({{{0, 7}, 64}, {{64, 8}, 256}, {{512, 20}, 576}}) ==
              Sequences({7, 8, 20}));
}

TDBG_TEST(AHeaderThatWasCopiedIsPassedBy) {
  // From further back, from further ahead, and inside another record.
  EXPECT_TRUE(
      ChainOf(
          {{{0, 4}, 64}, {{64, 1}, 128}, {{128, 2}, 192}, {{192, 3}, 256}}) ==
      Sequences({1, 2, 3}));
  EXPECT_TRUE(
      ChainOf(
          {{{0, 1}, 64}, {{64, 2}, 128}, {{128, 3}, 192}, {{192, 1}, 256}}) ==
      Sequences({1, 2, 3}));
  EXPECT_TRUE(
      ChainOf(
          {{{0, 1}, 256}, {{64, 2}, 128}, {{256, 3}, 320}, {{320, 4}, 384}}) ==
      Sequences({2, 3, 4}));
}

TDBG_TEST(OfTwoThatAreTheSameTheOneFurtherBackIsTaken) {
  RecordChain chain;
  chain.Add({0, 1}, 64);
  chain.Add({64, 1}, 128);
  chain.Add({128, 2}, 192);
  const std::vector<FoundRecord> found = chain.Longest();
  EXPECT_EQ(found.size(), 2U);
  EXPECT_EQ(found.front().offset, 128U);
  EXPECT_EQ(found.back().offset, 64U);
}

TDBG_TEST(TheChainIsTheOneThatComparingAllPairsFinds) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Added> records(1 + random() % 40);
    const std::uint64_t n_sequences = 1 + random() % 50;
    const std::uint64_t longest = 1 + random() % 5;
    std::uint64_t offset = 0;
    for (Added& each : records) {
      offset += 64 * (1 + random() % 3);
      each = {{offset, random() % n_sequences},
              offset + 64 * (1 + random() % longest)};
    }
    RecordChain chain;
    for (const Added& each : records) chain.Add(each.record, each.end);
    std::vector<std::uint64_t> offsets;
    for (const FoundRecord& each : chain.Longest()) {
      offsets.push_back(each.offset);
    }
    EXPECT_TRUE(offsets == Compared(records));
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

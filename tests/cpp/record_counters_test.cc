// The drop log keeps exact counts in bounded memory.

#include "writer/record_counters.h"

#include <cstdint>
#include <vector>

#include "testing.h"

namespace tdbg {
namespace {

TDBG_TEST(ADropLogIsBoundedAndExact) {
  DropLog log;
  for (std::int64_t step = -1; step < 5000; ++step) {
    log.Add(step % 2 == 0 ? GapReason::kQueueFull : GapReason::kIoError,
            {.step = step, .n_bytes = 10, .type = RecordType::kTensor});
  }
  const std::vector<Gap> gaps = log.Take();
  EXPECT_LE(gaps.size(), DropLog::kMaxEntries + 1);
  std::uint64_t n_records = 0;
  for (const Gap& gap : gaps) {
    n_records += gap.records;
    EXPECT_EQ(gap.bytes, 10 * gap.records);
    EXPECT_EQ(gap.what, 2U);
    EXPECT_LE(gap.first_step, gap.last_step);
  }
  EXPECT_EQ(n_records, 5001U);
  EXPECT_TRUE(log.empty());
}

// Sabotage seen to fail here: joining what is not next to each other.
TDBG_TEST(ADropLogJoinsNeighborsBeforeAnythingElse) {
  DropLog log;
  // All but every tenth step: what sampling leaves out.
  for (std::int64_t step = 0; step < 5000; ++step) {
    if (step % 10 == 0) continue;
    log.Add(GapReason::kSampled,
            {.step = step, .n_bytes = 10, .type = RecordType::kTensor});
  }
  std::uint64_t n_records = 0;
  for (const Gap& gap : log.Take()) {
    n_records += gap.records;
    EXPECT_EQ(gap.first_step / 10, gap.last_step / 10);
    EXPECT_NE(gap.first_step % 10, 0);
    EXPECT_EQ(gap.records,
              static_cast<std::uint64_t>(gap.last_step - gap.first_step + 1));
  }
  EXPECT_EQ(n_records, 4500U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

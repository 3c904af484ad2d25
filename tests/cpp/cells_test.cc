// Cells: what they say of rows, which buckets there are, and which indexes have
// them.
//
// Seen to fail when: buckets begin at the first step of a shard; rows of a step
// without a record join others; the class of extremes is not looked at.

#include "format/cells.h"

#include <cmath>
#include <limits>

#include "forged_index.h"
#include "shard_builder.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

ColumnRow RowAt(std::int64_t step, double seed, std::uint64_t nan = 0) {
  ColumnRow row;
  row.step = step;
  row.definition = 1;
  row.summary = SomeRow(1, seed).summary;
  row.summary.nan = nan;
  return row;
}

StepEntry StepAt(std::int64_t step, std::uint32_t mode) {
  StepEntry entry{};
  entry.record.step = step;
  entry.record.mode = mode;
  return entry;
}

std::vector<Cell> CellsOf(const std::vector<ColumnRow>& rows,
                          const std::vector<StepEntry>& steps,
                          unsigned shift = 6) {
  StepModes modes(steps);
  std::vector<Cell> cells;
  AppendCells(rows, ExtremeClass::kFloat64, shift, &modes, &cells);
  return cells;
}

CellRange RangeOf(const Cell& cell, CellField field) {
  return cell.ranges[static_cast<std::size_t>(field)];
}

TDBG_TEST(TheValuesOfARowAreThoseOfItsMoments) {
  const Summary summary = SomeRow(1, 6.0).summary;  // 4 elements, one is zero.
  const CellRow row(summary, ExtremeClass::kFloat64);
  EXPECT_TRUE(row.is_valued());
  EXPECT_FALSE(row.is_bad());
  EXPECT_EQ(row.Value(CellField::kL2), 6.0F);
  EXPECT_EQ(row.Value(CellField::kRms), 3.0F);
  EXPECT_EQ(row.Value(CellField::kMean), 2.0F);
  EXPECT_EQ(row.Value(CellField::kStd), 3.0F);
  EXPECT_EQ(row.Value(CellField::kAbsMax), 6.0F);
  EXPECT_EQ(row.Value(CellField::kZeroShare), 0.25F);
}

TDBG_TEST(WhatIsBeyondFloatIsItsLargestNumber) {
  Summary summary = SomeRow(1, 1e200).summary;
  summary.mean = -1e200;
  const CellRow row(summary, ExtremeClass::kFloat64);
  EXPECT_TRUE(row.is_valued());
  EXPECT_EQ(row.Value(CellField::kL2), kLargest);
  EXPECT_EQ(row.Value(CellField::kMean), -kLargest);
}

TDBG_TEST(ExtremesOfIntegersAreReadByTheirClass) {
  Summary summary = SomeRow(1, 1.0).summary;
  summary.min.i64 = -9;
  summary.max.i64 = 3;
  EXPECT_EQ(CellRow(summary, ExtremeClass::kInt64).Value(CellField::kAbsMax),
            9.0F);
  summary.min.u64 = 0;
  summary.max.u64 = 1ULL << 63;
  EXPECT_EQ(CellRow(summary, ExtremeClass::kUInt64).Value(CellField::kAbsMax),
            9223372036854775808.0F);
  EXPECT_TRUE(CellClassOf(DType::kUInt8) == ExtremeClass::kUInt64);
  EXPECT_TRUE(CellClassOf(DType::kComplex64) == ExtremeClass::kFloat64);
}

TDBG_TEST(ARowWithoutFiniteElementIsBadAndHasNoValue) {
  Summary summary = SomeRow(1, 2.0).summary;
  summary.positive_infinity = 4;
  const CellRow row(summary, ExtremeClass::kFloat64);
  EXPECT_TRUE(row.is_bad());
  EXPECT_FALSE(row.is_valued());
  summary.positive_infinity = 1;
  EXPECT_TRUE(CellRow(summary, ExtremeClass::kFloat64).is_bad());
  EXPECT_TRUE(CellRow(summary, ExtremeClass::kFloat64).is_valued());
}

TDBG_TEST(MomentsThatNoTensorCanHaveAreBadAndNoValue) {
  const auto is_bad = [](auto change) {
    Summary summary = SomeRow(1, 2.0).summary;
    change(&summary);
    const CellRow row(summary, ExtremeClass::kFloat64);
    return row.is_bad() && !row.is_valued();
  };
  EXPECT_TRUE(is_bad([](Summary* s) { s->m2 = -1; }));
  EXPECT_TRUE(is_bad([](Summary* s) { s->m2 = kNan; }));
  EXPECT_TRUE(is_bad([](Summary* s) { s->l2 = -kInfinity; }));
  EXPECT_TRUE(is_bad([](Summary* s) { s->mean = kNan; }));
  EXPECT_TRUE(is_bad([](Summary* s) { s->max.f64 = s->min.f64 = kNan; }));
  EXPECT_TRUE(is_bad([](Summary* s) { s->nan = 5; }));  // Of 4.
}

TDBG_TEST(BucketsLieOnAGridWhereverAShardBegins) {
  std::vector<ColumnRow> rows;
  std::vector<StepEntry> steps;
  for (std::int64_t step = -70; step < 130; ++step) {
    rows.push_back(RowAt(step, static_cast<double>(step + 100)));
    steps.push_back(StepAt(step, 1));
  }
  const std::vector<Cell> cells = CellsOf(rows, steps);
  EXPECT_EQ(cells.size(), 5U);
  const std::int64_t firsts[] = {-70, -64, 0, 64, 128};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    EXPECT_EQ(cells[i].first_step, firsts[i]);
    EXPECT_TRUE(CellHolds(cells[i], 1, -70, 129));
  }
  EXPECT_EQ(cells[1].last_step, -1);
  EXPECT_EQ(cells[2].n_rows, 64U);
  const CellRange l2 = RangeOf(cells[2], CellField::kL2);
  EXPECT_EQ(l2.least, 100.0F);
  EXPECT_EQ(l2.greatest, 163.0F);
  EXPECT_EQ(l2.mean, 131.5F);
}

TDBG_TEST(BadRowsAreCountedAndTheFirstIsNamed) {
  const std::vector<Cell> cells =
      CellsOf({RowAt(3, 1), RowAt(5, 2, 4), RowAt(4, 3, 1)},
              {StepAt(3, 1), StepAt(4, 1), StepAt(5, 1)});
  EXPECT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].n_rows, 3U);
  EXPECT_EQ(cells[0].n_bad, 2U);
  EXPECT_EQ(cells[0].n_valued, 2U);
  EXPECT_EQ(cells[0].first_bad, 4);
  EXPECT_EQ(cells[0].last_step, 5);
  EXPECT_EQ(RangeOf(cells[0], CellField::kL2).greatest, 3.0F);
  EXPECT_EQ(RangeOf(cells[0], CellField::kL2).mean, 2.0F);
}

TDBG_TEST(ModesThatTakeTurnsHaveCellsOfTheirOwn) {
  std::vector<ColumnRow> rows;
  std::vector<StepEntry> steps;
  for (std::int64_t step = 0; step < 64; ++step) {
    rows.push_back(RowAt(step, step % 2 == 0 ? 1 : 100));
    steps.push_back(StepAt(step, step % 2 == 0 ? 1 : 2));
  }
  const std::vector<Cell> cells = CellsOf(rows, steps);
  EXPECT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[0].mode, 1U);
  EXPECT_EQ(RangeOf(cells[0], CellField::kL2).greatest, 1.0F);
  EXPECT_EQ(RangeOf(cells[1], CellField::kL2).least, 100.0F);
}

TDBG_TEST(RowsOfAStepWithoutARecordAreACellOfOneStep) {
  const std::vector<Cell> cells = CellsOf(
      {RowAt(0, 1), RowAt(1, 2), RowAt(2, 3), RowAt(2, 4)}, {StepAt(0, 1)});
  EXPECT_EQ(cells.size(), 3U);
  EXPECT_EQ(cells[1].mode, kModeUnknown);
  EXPECT_EQ(cells[1].first_step, 1);
  EXPECT_EQ(cells[1].last_step, 1);
  EXPECT_EQ(cells[2].n_rows, 2U);
}

TDBG_TEST(OfTwoRecordsOfAStepTheLaterTellsItsMode) {
  const std::vector<StepEntry> steps = {StepAt(5, 1), StepAt(3, 2),
                                        StepAt(5, 3), StepAt(9, 1)};
  StepModes modes(steps);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(modes.Find(3), 2U);
    EXPECT_EQ(modes.Find(4), kModeUnknown);
    EXPECT_EQ(modes.Find(5), 3U);
    EXPECT_EQ(modes.Find(9), 1U);
    EXPECT_EQ(modes.Find(10), kModeUnknown);
    EXPECT_EQ(modes.Find(-1), kModeUnknown);
  }
  EXPECT_EQ(StepModes().Find(0), kModeUnknown);
}

TDBG_TEST(ABucketHoldsSomeSixtyFourRecordedSteps) {
  EXPECT_EQ(BucketShift(0, 63, 64), 6U);
  EXPECT_EQ(BucketShift(5, 5, 1), 6U);
  EXPECT_EQ(BucketShift(0, 630, 64), 10U);  // Every tenth: 1024 steps.
  EXPECT_EQ(BucketShift(0, 127, 64), 7U);
  EXPECT_EQ(BucketShift(0, 0, 0), 6U);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(BucketShift(-kMost, kMost, 2), kMostBucketShift);
}

TDBG_TEST(ACellThatLiesAboutItselfDoesNotHold) {
  const Cell cell = CellOf(RowAt(7, 1, 1), ExtremeClass::kFloat64, 1);
  EXPECT_TRUE(CellHolds(cell, 1, 7, 7));
  EXPECT_FALSE(CellHolds(cell, 2, 7, 7));
  EXPECT_FALSE(CellHolds(cell, 1, 8, 9));
  EXPECT_FALSE(CellHolds(cell, 1, 0, 6));
  const auto holds = [&](auto change) {
    Cell lying = cell;
    change(&lying);
    return CellHolds(lying, 1, 0, 100);
  };
  EXPECT_TRUE(holds([](Cell* c) { c->last_step = 8; }));
  EXPECT_FALSE(holds([](Cell* c) { c->last_step = 6; }));
  EXPECT_FALSE(holds([](Cell* c) { c->first_bad = 8; }));
  EXPECT_FALSE(holds([](Cell* c) { c->n_rows = 0; }));
  EXPECT_FALSE(holds([](Cell* c) { c->n_bad = 2; }));
  EXPECT_FALSE(holds([](Cell* c) { c->n_valued = 2; }));
  EXPECT_FALSE(holds([](Cell* c) { c->reserved = 1; }));
  EXPECT_FALSE(holds([](Cell* c) {
    c->mode = kModeUnknown;
    c->last_step = 8;
  }));
}

// --- In the index ------------------------------------------------------------

const Section* Find(const std::vector<Section>& sections, SectionKind kind) {
  for (const Section& section : sections) {
    if (section.kind == kind) return &section;
  }
  return nullptr;
}

TDBG_TEST(AnIndexHasTheCellsOfEachDefinition) {
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(SomeDefinition(1, "w1"));
  shard.AddDefinition(SomeDefinition(2, "w2", DType::kInt64));
  StepRecord step;
  step.mode = 1;
  for (std::int64_t i = 100; i < 200; ++i) {
    Row integers = SomeRow(2, 1);
    integers.summary.min.i64 = -static_cast<std::int64_t>(i);
    integers.summary.max.i64 = 1;
    shard.AddRows(i, {SomeRow(1, 3), integers});
    shard.Add(RecordType::kStep, i, EncodeStep(step), 1);
  }
  shard.Seal();
  const std::vector<Section> sections = SectionsOf(shard.Index());
  const Section* groups = Find(sections, SectionKind::kCellGroups);
  const Section* cells = Find(sections, SectionKind::kCells);
  EXPECT_TRUE(groups != nullptr && cells != nullptr);
  EXPECT_EQ(groups->n_entries, 2U);
  EXPECT_EQ(cells->n_entries, 6U);  // 100-127, 128-191, 192-199.
  EXPECT_EQ(cells->entry_size, 120U);
  EXPECT_EQ(cells->crc, 0U);
  EXPECT_EQ(cells->flags, 6U << kBucketShiftBit);
  EXPECT_EQ(cells->first_step, 100);
  EXPECT_EQ(cells->last_step, 199);
  Cell last;
  std::memcpy(&last, shard.Index().data() + cells->offset + 5 * sizeof(Cell),
              sizeof(Cell));
  EXPECT_EQ(last.definition, 2U);
  EXPECT_EQ(RangeOf(last, CellField::kAbsMax).greatest, 199.0F);
}

TDBG_TEST(AShardOfWhichCellsWouldSpareLittleHasNone) {
  ShardBuilder shard(SomeHeader());
  StepRecord step;
  for (std::uint32_t i = 0; i < 3; ++i) {
    shard.AddRows(i, {SomeRow(2 * i + 1, 3), SomeRow(2 * i + 2, 1)});
    shard.Add(RecordType::kStep, i, EncodeStep(step), 1);
  }
  shard.Seal();
  const std::vector<Section> sections = SectionsOf(shard.Index());
  EXPECT_TRUE(Find(sections, SectionKind::kColumns) != nullptr);
  EXPECT_TRUE(Find(sections, SectionKind::kCells) == nullptr);
  EXPECT_TRUE(Find(sections, SectionKind::kCellGroups) == nullptr);
}

TDBG_TEST(AShardWithoutEndedStepsHasNone) {
  ShardBuilder shard(SomeHeader());
  for (std::int64_t i = 0; i < 9; ++i) shard.AddRows(0, {SomeRow(1, 3)});
  shard.Seal();
  EXPECT_TRUE(Find(SectionsOf(shard.Index()), SectionKind::kCells) == nullptr);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

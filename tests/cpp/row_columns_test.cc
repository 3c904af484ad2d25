// RowColumns: of each row that is asked for, the place of its step and its
// fields; the Python tests compare whole runs (trial/tables).
//
// Seen to fail when: a step that comes twice moves on to the next place; a
// stretch is compared with the last row of the one before.

#include "reader/row_columns.h"

#include <bit>
#include <span>
#include <vector>

#include "testing.h"

namespace tdbg::testing {
namespace {

ColumnRow RowAt(std::int64_t step, double mean) {
  ColumnRow row;
  row.step = step;
  row.summary.count = static_cast<std::uint64_t>(step);
  row.summary.mean = mean;
  return row;
}

TDBG_TEST(RowsOfOtherStepsAreLeft) {
  const RowColumnsQuery query = {
      .definitions = {7}, .steps = {1, 3, 9}, .fields = {8, 0}};
  RowColumns gathered(&query);
  const std::vector<ColumnRow> rows = {RowAt(0, 0.5), RowAt(1, 1.5),
                                       RowAt(2, 2.5), RowAt(3, 3.5),
                                       RowAt(8, 8.5), RowAt(9, 9.5)};
  gathered.Add(7, rows);
  EXPECT_EQ(gathered.stretches.size(), 1U);
  EXPECT_EQ(gathered.stretches[0].definition, 7U);
  EXPECT_EQ(gathered.stretches[0].n, 3U);
  const std::vector<std::uint32_t> places = {0, 1, 2};
  EXPECT_TRUE(gathered.places == places);
  const double means[] = {1.5, 3.5, 9.5};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::bit_cast<double>(gathered.fields()[0][i]), means[i]);
    EXPECT_EQ(gathered.fields()[1][i],
              static_cast<std::uint64_t>(query.steps[i]));
  }
}

TDBG_TEST(AStepMayComeTwiceAndGoBack) {
  const RowColumnsQuery query = {
      .definitions = {7}, .steps = {1, 2, 3}, .fields = {}};
  RowColumns gathered(&query);
  const std::vector<ColumnRow> rows = {RowAt(1, 0), RowAt(1, 0), RowAt(3, 0),
                                       RowAt(2, 0), RowAt(3, 0)};
  gathered.Add(7, rows);
  const std::vector<std::uint32_t> places = {0, 0, 2, 1, 2};
  EXPECT_TRUE(gathered.places == places);
  EXPECT_FALSE(gathered.stretches[0].ascends);
}

TDBG_TEST(AStretchAscendsIfEachStepComesOnceAfterTheOnesBefore) {
  const RowColumnsQuery query = {
      .definitions = {7, 8}, .steps = {1, 2, 3}, .fields = {}};
  RowColumns gathered(&query);
  const std::vector<ColumnRow> rows = {RowAt(1, 0), RowAt(3, 0), RowAt(3, 0)};
  gathered.Add(7, std::span(rows).first(2));
  // What others have is nothing to it.
  gathered.Add(8, std::span(rows).first(1));
  gathered.Add(8, std::span(rows).last(2));
  gathered.Add(8, std::vector<ColumnRow>{RowAt(9, 0), RowAt(2, 0)});
  EXPECT_TRUE(gathered.stretches[0].ascends);
  EXPECT_TRUE(gathered.stretches[1].ascends);
  EXPECT_FALSE(gathered.stretches[2].ascends);
  EXPECT_TRUE(gathered.stretches[3].ascends);
}

TDBG_TEST(WithoutARowThereIsNoStretch) {
  const RowColumnsQuery query = {
      .definitions = {7}, .steps = {5}, .fields = {1}};
  RowColumns gathered(&query);
  const std::vector<ColumnRow> rows = {RowAt(4, 0), RowAt(6, 0)};
  gathered.Add(7, rows);
  gathered.Add(7, {});
  EXPECT_TRUE(gathered.stretches.empty());
  EXPECT_TRUE(gathered.places.empty());
  EXPECT_TRUE(gathered.fields()[0].empty());
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

// Tensors that lost records are named, in bounded memory, and written as JSON.

#include "writer/lost_tensors.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace tdbg {
namespace {

std::vector<LostForReason> NewsAfter(LostTensors* lost, std::uint32_t id,
                                     std::uint64_t records = 1) {
  lost->Add(GapReason::kQueueFull, 7, {&id, 1}, records);
  return lost->TakeNews(false);
}

TDBG_TEST(LostTensorsAreNamedAndBeyondABoundCounted) {
  LostTensors lost;
  const auto first = NewsAfter(&lost, 1);
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].named[0].definition, 1U);
  EXPECT_EQ(first[0].named[0].first_step, 7);
  // More of the same is news when it has doubled.
  EXPECT_EQ(NewsAfter(&lost, 1).size(), 1U);
  EXPECT_EQ(NewsAfter(&lost, 1).size(), 0U);
  EXPECT_EQ(NewsAfter(&lost, 1).size(), 1U);
  lost.Add(GapReason::kIoError, 8, {}, 1);  // Of no tensor.
  for (std::uint32_t id = 2; id < 201; ++id) (void)NewsAfter(&lost, id, 2);
  const auto all = lost.All();
  EXPECT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].named.size(), LostTensors::kMaxNamed);
  EXPECT_EQ(all[0].n_more, 200 - LostTensors::kMaxNamed);
  EXPECT_EQ(all[0].named[0].records, 4U);
  EXPECT_EQ(all[0].named[1].records, 2U);
  EXPECT_EQ(all[0].n_records, 4U + 199 * 2);
  (void)lost.TakeNews(true);
  EXPECT_EQ(lost.TakeNews(true).size(), 0U);
  lost.Forget();
  EXPECT_EQ(lost.TakeNews(false).size(), 1U);
}

TDBG_TEST(LostTensorsAreJsonWhateverTheirNames) {
  DefinitionTable definitions;
  LostForReason lost;
  lost.n_more = 3;
  for (const std::string name : {"a\"b\\c\n", "d"}) {
    Definition definition;
    definition.name = name;
    definition.dtype = DType::kFloat32;
    definition.item_size = 4;
    const std::uint32_t id = definitions.Define(std::move(definition));
    lost.named.push_back({.definition = id, .first_step = 5, .records = 2});
  }
  EXPECT_EQ(LostTensorsJson(lost, &definitions),
            std::string(R"({"what":"lost","reason":1,"tensors":[)"
                        R"({"tensor":"a\"b\\c\u000a","records":2,"step":5},)"
                        R"({"tensor":"d","records":2,"step":5}],"more":3})"));
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

#include "reader/envelope_reader.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tdbg {
namespace {

// After so long Add lets others have the reader.
constexpr std::chrono::milliseconds kSlice{10};
// Cells that were made of rows are kept up to so many bytes: of the newest
// shards, which are asked first.
constexpr std::uint64_t kMadeBytes = 64U << 20;

}  // namespace

EnvelopeQuery EnvelopeReader::QueryOf(const EnvelopeIds& asked) const {
  EnvelopeQuery query{.steps = asked.steps, .tensors = {}, .mode = asked.mode};
  const std::size_t n = std::min(asked.definitions.size(), asked.names.size());
  for (std::size_t i = 0; i < n; ++i) {
    const auto definition = definitions_->Find(asked.definitions[i]);
    if (!definition) continue;
    query.tensors.push_back({.definition = definition->id,
                             .name = asked.names[i],
                             .extremes = CellClassOf(definition->dtype)});
  }
  const auto id = [](const auto& tensor) { return tensor.definition; };
  std::ranges::sort(query.tensors, {}, id);
  const auto again = std::ranges::unique(query.tensors, {}, id);
  query.tensors.erase(again.begin(), again.end());
  return query;
}

std::size_t EnvelopeReader::Add(const EnvelopeIds& asked, std::size_t n_shards,
                                EnvelopeGrid* grid) {
  const EnvelopeQuery query = QueryOf(asked);
  const auto end = std::chrono::steady_clock::now() + kSlice;
  std::vector<LooseCell> loose;
  std::vector<ListedShard>& shards = list_->shards();
  std::size_t n = std::min(n_shards, shards.size());
  while (n > 0 && std::chrono::steady_clock::now() < end) {
    ListedShard& listed = shards[--n];
    loose.clear();
    listed.shard->AddToEnvelope(query, grid, &loose);
    CountMade(&listed);
    list_->Retire(&listed);
    AddLoose(query, loose, grid);
  }
  return n;
}

void EnvelopeReader::AddLoose(const EnvelopeQuery& query,
                              const std::vector<LooseCell>& loose,
                              EnvelopeGrid* grid) {
  std::unordered_map<std::int64_t, std::uint32_t> modes;
  for (const LooseCell& one : loose) {
    const std::int64_t step = one.cell.first_step;
    const auto [mode, is_new] = modes.try_emplace(step, kModeUnknown);
    if (is_new) mode->second = ModeOf(step);
    if (query.HasMode(mode->second)) {
      grid->AddCell(one.name, one.column, one.cell);
    }
  }
}

void EnvelopeReader::CountMade(ListedShard* listed) {
  const std::uint64_t n = listed->shard->n_made();
  n_made_ += n - std::exchange(listed->n_made, n);
  if (n_made_ <= kMadeBytes) return;
  listed->shard->DropMadeCells();
  n_made_ -= std::exchange(listed->n_made, 0);
}

std::uint32_t EnvelopeReader::ModeOf(std::int64_t step) {
  const auto known = modes_.find(step);
  if (known != modes_.end()) return known->second;
  std::uint32_t mode = kModeUnknown;
  for (auto listed = list_->shards().rbegin();
       listed != list_->shards().rend() && mode == kModeUnknown; ++listed) {
    Shard& shard = *listed->shard;
    if (!shard.MayHaveSteps({step, step})) continue;
    shard.FindSteps({step, step}, [&](std::uint64_t i) {
      mode = shard.Steps()[i].record.mode;
    });
    list_->Retire(&*listed);
  }
  if (mode != kModeUnknown) modes_.emplace(step, mode);
  return mode;
}

std::vector<CellBuckets> EnvelopeReader::FindBuckets(StepRange steps) {
  std::vector<CellBuckets> found;
  for (ListedShard& listed : list_->shards()) {
    Shard& shard = *listed.shard;
    const auto shift = shard.CellShift();
    if (!shift || shard.n_rows() == 0 || !shard.FindsPlaces(steps)) continue;
    found.push_back({std::int64_t{1} << *shift, shard.n_rows()});
  }
  return found;
}

}  // namespace tdbg

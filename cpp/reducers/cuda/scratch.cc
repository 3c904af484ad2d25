#include "reducers/cuda/scratch.h"

#include <algorithm>

#include "reducers/cuda/entries.h"
#include "reducers/cuda/kernel_abi.h"

namespace tdbg::cuda {
namespace {

constexpr std::uint64_t kNoGraph = ~std::uint64_t{0};  // It was forgotten.

std::uint32_t Doubled(std::uint32_t n, std::uint32_t wanted) {
  while (n < wanted) n *= 2;
  return n;
}

}  // namespace

Result<ScratchPool::Scratch*> ScratchPool::For(Place place,
                                               std::uint32_t n_tiles,
                                               std::uint32_t n_entries) {
  Result<Scratch*> found = Find(place);
  if (!found.ok()) return found;
  Scratch* scratch = found.value();
  if (n_tiles > scratch->n_tiles) {
    TDBG_RETURN_IF_ERROR(Grow(n_tiles, n_entries, scratch));
  }
  scratch->last_used = ++clock_;
  // What runs in a graph is joined by whoever replays it.
  scratch->is_unjoined = place.graph == 0;
  return scratch;
}

Result<ScratchPool::Scratch*> ScratchPool::Find(Place place) {
  std::size_t n_streams = 0;
  Scratch* oldest = nullptr;
  Scratch* orphan = nullptr;
  for (const auto& scratch : all_) {
    if (scratch->place == place) return scratch.get();
    if (scratch->place.graph == kNoGraph) orphan = scratch.get();
    if (scratch->place.graph != 0) continue;
    ++n_streams;
    if (scratch->is_unjoined && IsCaptured(*scratch)) continue;
    if (oldest == nullptr || scratch->last_used < oldest->last_used) {
      oldest = scratch.get();
    }
  }
  if (place.graph == 0 && n_streams >= kMaxStreams) {
    if (oldest == nullptr) {
      return Status::LimitExceeded("all streams are being captured");
    }
    const Driver& driver = device_->driver();
    if (oldest->is_unjoined) {
      TDBG_RETURN_IF_ERROR(
          driver.Check(driver.event_record(oldest->event, oldest->place.stream),
                       "cuEventRecord"));
    }
    TDBG_RETURN_IF_ERROR(
        driver.Check(driver.stream_wait_event(place.stream, oldest->event, 0),
                     "cuStreamWaitEvent"));
    oldest->place = place;
    return oldest;
  }
  if (place.graph != 0 && orphan != nullptr) {
    // Its counters are zero: the graph's launches left them so.
    orphan->place = place;
    return orphan;
  }
  Result<EventHandle> event = device_->NewEvent();
  if (!event.ok()) return event.status();
  auto scratch = std::make_unique<Scratch>();
  scratch->event = event.value();
  scratch->place = place;
  all_.push_back(std::move(scratch));
  return all_.back().get();
}

Status ScratchPool::Grow(std::uint32_t n_tiles, std::uint32_t n_entries,
                         Scratch* scratch) {
  // The old one stays: launches, and graphs, may still use it.
  const std::uint32_t n =
      Doubled(std::max(scratch->n_tiles, kFirstTiles), n_tiles);
  const std::size_t counter_bytes =
      CounterCount(std::max(n_entries, kMaxEntries), n) * sizeof(std::uint32_t);
  const std::size_t partial_bytes = std::size_t{n} * sizeof(DeviceRow);
  Result<DeviceAddress> memory =
      device_->Allocate(partial_bytes + counter_bytes);
  if (!memory.ok()) return memory.status();
  const DeviceAddress counters = memory.value() + partial_bytes;
  const Driver& driver = device_->driver();
  // In the stream's order, so in a graph too.
  TDBG_RETURN_IF_ERROR(driver.Check(
      driver.memset(counters, 0, counter_bytes, scratch->place.stream),
      "cuMemsetD8Async"));
  scratch->partials = memory.value();
  scratch->counters = counters;
  scratch->n_tiles = n;
  return Status::Ok();
}

Status ScratchPool::Join(Stream stream) {
  const Driver& driver = device_->driver();
  for (const auto& scratch : all_) {
    if (!scratch->is_unjoined) continue;
    // To record now would make the event, and `stream`, part of the graph.
    if (IsCaptured(*scratch)) {
      return Status::LimitExceeded("a stream is being captured");
    }
    TDBG_RETURN_IF_ERROR(
        driver.Check(driver.event_record(scratch->event, scratch->place.stream),
                     "cuEventRecord"));
    TDBG_RETURN_IF_ERROR(
        driver.Check(driver.stream_wait_event(stream, scratch->event, 0),
                     "cuStreamWaitEvent"));
    scratch->is_unjoined = false;
  }
  return Status::Ok();
}

bool ScratchPool::IsCaptured(const Scratch& scratch) const {
  const auto captured = device_->CapturedInto(scratch.place.stream);
  return !captured.ok() || captured.value().id != 0;
}

void ScratchPool::Forget(std::uint64_t graph) {
  for (const auto& scratch : all_) {
    if (scratch->place.graph == graph) scratch->place = {nullptr, kNoGraph};
  }
}

}  // namespace tdbg::cuda

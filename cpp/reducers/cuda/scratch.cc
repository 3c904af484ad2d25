#include "reducers/cuda/scratch.h"

#include <algorithm>

#include "reducers/cuda/entries.h"
#include "reducers/cuda/kernel_abi.h"

namespace tdbg::cuda {
namespace {

constexpr std::uint64_t kNoGraph = ~std::uint64_t{0};  // It was forgotten.

// Other threads mean other streams by the same handle.
bool IsOfThread(const Place& place) {
  return place.graph == 0 && place.stream == PerThreadStream();
}

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
  // After a step the stream may have been destroyed, and its handle given to
  // another one.
  if (place.graph == 0 && scratch->n_tiles != 0 &&
      (!scratch->is_unjoined || IsOfThread(place))) {
    TDBG_RETURN_IF_ERROR(Wait(place.stream, scratch));
  }
  if (n_tiles > scratch->n_tiles) {
    TDBG_RETURN_IF_ERROR(Grow(n_tiles, n_entries, scratch));
  }
  scratch->last_used = ++clock_;
  // What runs in a graph is joined by whoever replays it.
  scratch->is_unjoined = place.graph == 0;
  return scratch;
}

Status ScratchPool::Launched(Scratch* scratch) {
  if (!IsOfThread(scratch->place)) return Status::Ok();
  const Driver& driver = device_->driver();
  return driver.Check(driver.event_record(scratch->event, PerThreadStream()),
                      "cuEventRecord");
}

Result<ScratchPool::Scratch*> ScratchPool::Find(Place place) {
  std::size_t n_streams = 0;
  Scratch* oldest = nullptr;
  Scratch* orphan = nullptr;
  for (const auto& scratch : all_) {
    if (scratch->place == place) return scratch.get();
    if (scratch->place.graph == kNoGraph &&
        (orphan == nullptr || scratch->n_tiles > orphan->n_tiles)) {
      orphan = scratch.get();
    }
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
    if (oldest->is_unjoined) {
      TDBG_RETURN_IF_ERROR(Record(oldest));
      TDBG_RETURN_IF_ERROR(Wait(place.stream, oldest));
    }
    oldest->place = place;
    return oldest;
  }
  if (place.graph != 0 && orphan != nullptr) {
    // Nobody knows whether its graph ever ran and set the counters to zero.
    const Driver& driver = device_->driver();
    if (orphan->n_tiles != 0) {
      TDBG_RETURN_IF_ERROR(
          driver.Check(driver.memset(orphan->counters, 0,
                                     orphan->n_counter_bytes, place.stream),
                       "cuMemsetD8Async"));
    }
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
  scratch->n_counter_bytes = counter_bytes;
  scratch->n_tiles = n;
  return Status::Ok();
}

Status ScratchPool::Join(Stream stream) {
  for (const auto& scratch : all_) {
    if (!scratch->is_unjoined) continue;
    // To record now would make the event, and `stream`, part of the graph.
    if (IsCaptured(*scratch)) {
      return Status::LimitExceeded("a stream is being captured");
    }
    TDBG_RETURN_IF_ERROR(Record(scratch.get()));
    TDBG_RETURN_IF_ERROR(Wait(stream, scratch.get()));
    scratch->is_unjoined = false;
  }
  return Status::Ok();
}

Status ScratchPool::Record(Scratch* scratch) {
  if (IsOfThread(scratch->place)) return Status::Ok();  // By its thread.
  const Driver& driver = device_->driver();
  return driver.Check(
      driver.event_record(scratch->event, scratch->place.stream),
      "cuEventRecord");
}

Status ScratchPool::Wait(Stream stream, Scratch* scratch) {
  const Driver& driver = device_->driver();
  return driver.Check(driver.stream_wait_event(stream, scratch->event, 0),
                      "cuStreamWaitEvent");
}

bool ScratchPool::IsCaptured(const Scratch& scratch) const {
  if (IsOfThread(scratch.place)) return false;
  const auto captured = device_->CapturedInto(scratch.place.stream);
  return !captured.ok() || captured.value().id != 0;
}

void ScratchPool::Forget(std::uint64_t graph) {
  for (const auto& scratch : all_) {
    if (scratch->place.graph == graph) scratch->place = {nullptr, kNoGraph};
  }
}

}  // namespace tdbg::cuda

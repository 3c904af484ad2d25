#include "reducers/cuda/scratch.h"

#include <algorithm>

#include "reducers/cuda/entries.h"
#include "reducers/cuda/kernel_abi.h"

namespace tdbg::cuda {
namespace {

// Other threads mean other streams by the same handle.
bool IsOfThread(const Place& place) {
  return place.graph == 0 && place.stream == PerThreadStream();
}

std::uint32_t Doubled(std::uint32_t n, std::uint32_t wanted) {
  while (n < wanted) n *= 2;
  return n;
}

std::size_t CounterBytes(std::uint32_t n_tiles) {
  return CounterCount(kMaxEntries, n_tiles) * sizeof(std::uint32_t);
}

}  // namespace

Result<ScratchPool::Scratch*> ScratchPool::For(Place place,
                                               std::uint32_t n_tiles) {
  Result<Scratch*> found = Find(place);
  if (!found.ok()) return found;
  Scratch* scratch = found.value();
  // After a step the stream may have been destroyed, and its handle given to
  // another one.
  if (place.graph == 0 && scratch->memory.n_tiles != 0 &&
      (!scratch->is_unjoined || IsOfThread(place))) {
    TDBG_RETURN_IF_ERROR(Wait(place.stream, scratch));
  }
  if (n_tiles > scratch->memory.n_tiles) {
    TDBG_RETURN_IF_ERROR(Grow(n_tiles, scratch));
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
  for (const auto& scratch : all_) {
    if (scratch->place == place) return scratch.get();
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
  Result<EventHandle> event = TakeEvent();
  if (!event.ok()) return event.status();
  auto scratch = std::make_unique<Scratch>();
  scratch->event = event.value();
  scratch->place = place;
  all_.push_back(std::move(scratch));
  return all_.back().get();
}

Status ScratchPool::Grow(std::uint32_t n_tiles, Scratch* scratch) {
  Result<Memory> memory =
      Obtain(Doubled(std::max(scratch->memory.n_tiles, kFirstTiles), n_tiles));
  if (!memory.ok()) return memory.status();
  // In the stream's order, so in a graph too.
  const Driver& driver = device_->driver();
  TDBG_RETURN_IF_ERROR(
      driver.Check(driver.memset(memory.value().counters, 0,
                                 CounterBytes(memory.value().n_tiles),
                                 scratch->place.stream),
                   "cuMemsetD8Async"));
  TDBG_RETURN_IF_ERROR(Retire(*scratch));
  scratch->memory = memory.value();
  return Status::Ok();
}

Result<ScratchPool::Memory> ScratchPool::Obtain(std::uint32_t n_tiles) {
  const Driver& driver = device_->driver();
  const auto is_free = [&](const Retired& retired) {
    return retired.graph == 0 && retired.memory.n_tiles >= n_tiles &&
           driver.event_query(retired.event) == kSuccess;
  };
  const auto found = std::find_if(retired_.begin(), retired_.end(), is_free);
  if (found != retired_.end()) {
    const Memory memory = found->memory;
    free_events_.push_back(found->event);
    retired_.erase(found);
    return memory;
  }
  const std::size_t partial_bytes = std::size_t{n_tiles} * sizeof(DeviceRow);
  Result<DeviceAddress> address =
      device_->Allocate(partial_bytes + CounterBytes(n_tiles));
  if (!address.ok()) return address.status();
  return Memory{.partials = address.value(),
                .counters = address.value() + partial_bytes,
                .n_tiles = n_tiles};
}

// Launches, and the graph, may still use what it has.
Status ScratchPool::Retire(const Scratch& scratch) {
  if (scratch.memory.n_tiles == 0) return Status::Ok();
  Result<EventHandle> event = TakeEvent();
  if (!event.ok()) return event.status();
  if (scratch.place.graph == 0) {
    const Driver& driver = device_->driver();
    TDBG_RETURN_IF_ERROR(
        driver.Check(driver.event_record(event.value(), scratch.place.stream),
                     "cuEventRecord"));
  }
  retired_.push_back({.memory = scratch.memory,
                      .event = event.value(),
                      .graph = scratch.place.graph});
  return Status::Ok();
}

// One that nothing waits for: recorded again before it is used.
Result<EventHandle> ScratchPool::TakeEvent() {
  if (free_events_.empty()) return device_->NewEvent();
  EventHandle event = free_events_.back();
  free_events_.pop_back();
  return event;
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
  for (Retired& retired : retired_) {
    if (retired.graph == graph) retired.graph = 0;
  }
  std::erase_if(all_, [&](const std::unique_ptr<Scratch>& scratch) {
    if (scratch->place.graph != graph) return false;
    // Nothing was ever recorded with its event.
    retired_.push_back(
        {.memory = scratch->memory, .event = scratch->event, .graph = 0});
    return true;
  });
}

}  // namespace tdbg::cuda

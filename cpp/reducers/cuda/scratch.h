// ScratchPool keeps the working memory of launches: one for each stream, since
// launches that share it must follow one another; and for each stream that is
// captured into a graph, one that stays the graph's as long as that lives.
//
// Memory that a stream has outgrown goes to whoever needs some next, once the
// stream is done with it.
//
// The thread's own default stream (PerThreadStream) is many streams by one
// handle: each launch on it waits for the one before and is recorded at once,
// by its thread.
//
// Thread safety: none; its owner's lock.
//
// Errors: what the driver says, and kLimitExceeded where the bound of the
// device's memory is reached, or a stream that is being captured is in the way.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "reducers/cuda/device.h"

namespace tdbg::cuda {

// Where a launch goes: a stream, and the graph (its id; 0: none) that it is
// being captured into.
struct Place {
  Stream stream = nullptr;
  std::uint64_t graph = 0;
  bool operator==(const Place&) const = default;
};

class ScratchPool {
 public:
  static constexpr std::size_t kMaxStreams = 8;
  static constexpr std::uint32_t kFirstTiles = 4096;

  struct Memory {
    DeviceAddress partials = 0;
    DeviceAddress counters = 0;
    std::uint32_t n_tiles = 0;  // There is room for.
  };
  struct Scratch {
    Memory memory;
    EventHandle event = nullptr;  // Recorded at the last join.

    Place place;
    bool is_unjoined = false;  // Something was launched since the last join.
    std::uint64_t last_used = 0;
  };

  // REQUIRES: `device` outlives this; a Scope of it is alive in every call.
  explicit ScratchPool(Device* device) : device_(device) {}

  // For a launch of so many tiles, of at most kMaxEntries tensors, at `place`.
  // Beyond kMaxStreams the stream takes over that of another one, and waits for
  // it on the device.
  Result<Scratch*> For(Place place, std::uint32_t n_tiles);
  // After the launch, by the same thread.
  Status Launched(Scratch* scratch);
  // Lets `stream` wait for all that was launched on other streams since the
  // last join.
  Status Join(Stream stream);
  // The graph is gone, and with it all that runs in it.
  void Forget(std::uint64_t graph);

 private:
  // Memory that a scratch has outgrown, or that a destroyed graph has left.
  struct Retired {
    Memory memory;
    EventHandle event = nullptr;  // Nothing uses it any more when this is over.
    std::uint64_t graph = 0;      // That still uses it; 0: none.
  };

  Result<Scratch*> Find(Place place);
  Status Record(Scratch* scratch);
  Status Wait(Stream stream, Scratch* scratch);
  [[nodiscard]] bool IsCaptured(const Scratch& scratch) const;
  Status Grow(std::uint32_t n_tiles, Scratch* scratch);
  // Room for so many tiles, that nothing uses now.
  Result<Memory> Obtain(std::uint32_t n_tiles);
  Status Retire(const Scratch& scratch);
  Result<EventHandle> TakeEvent();

  Device* const device_;
  std::vector<std::unique_ptr<Scratch>> all_;
  std::vector<Retired> retired_;
  std::vector<EventHandle> free_events_;
  std::uint64_t clock_ = 0;
};

}  // namespace tdbg::cuda

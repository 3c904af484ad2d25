#include "capture/device_engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "reducers/cuda/entries.h"

namespace tdbg {

using cuda::Device;
using cuda::DeviceRow;
using cuda::EventHandle;
using cuda::StreamOf;

// --- Beginning and end -------------------------------------------------------

std::shared_ptr<DeviceEngine> DeviceEngine::Open(
    Result<const cuda::Driver*> driver, int device,
    std::shared_ptr<StagingLock> lock) {
  const cuda::Driver* found = driver.ok() ? driver.value() : nullptr;
  std::shared_ptr<DeviceEngine> engine(
      new DeviceEngine(found, std::move(lock)));
  Status status = driver.status();
  if (found != nullptr) {
    MutexLock guard(engine->mutex_);
    status = engine->Start(device);
  }
  engine->is_usable_.store(status.ok(), std::memory_order_release);
  // No device or no kernels is no failure.
  if (!status.ok()) {
    MutexLock guard(engine->reason_mutex_);
    engine->reason_ = status.message();
    engine->n_failures_ = status.code() == StatusCode::kIoError ||
                          status.code() == StatusCode::kResourceExhausted;
  }
  return engine;
}

Status DeviceEngine::Start(int device) {
  auto opened = Device::Open(driver_, device);
  if (!opened.ok()) return opened.status();
  device_ = std::move(opened).value();
  const Device::Scope scope(*device_);
  TDBG_RETURN_IF_ERROR(scope.status());
  auto fetch_stream = device_->NewStream();
  if (!fetch_stream.ok()) return fetch_stream.status();
  fetch_stream_ = fetch_stream.value();
  auto copy_stream = device_->NewStream();
  if (!copy_stream.ok()) return copy_stream.status();
  copy_stream_ = copy_stream.value();
  auto event = device_->NewEvent();
  if (!event.ok()) return event.status();
  last_copy_ = event.value();
  const auto results = device_->Allocate(kRingBytes);
  if (!results.ok()) return results.status();
  const auto pinned = device_->AllocatePinned(kRingBytes);
  if (!pinned.ok()) return pinned.status();
  ring_.emplace(results.value(), pinned.value(), kRingBytes);
  reducer_.emplace(device_.get());
  return Status::Ok();
}

DeviceEngine::~DeviceEngine() {
  if (device_ == nullptr) return;
  const Device::Scope scope(*device_, 2);
  MutexLock guard(mutex_);
  // Tried twice: what cannot be waited for cannot be freed.
  bool is_idle =
      scope.status().ok() && (!reducer_ || reducer_->Join(fetch_stream_).ok() ||
                              reducer_->Join(fetch_stream_).ok());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (is_idle && !IsOver()) {
    is_idle = std::chrono::steady_clock::now() < deadline;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (is_idle && uses_lock_) lock_->Release(*driver_);
  ForgetGraphs();
  // Graphs that are still there would run into memory that is gone.
  if (!is_idle || !graphs_.empty()) device_->Abandon();
}

bool DeviceEngine::IsOver() {
  const auto is_copied = [&](const auto& graph) {
    return graph.second.copied == nullptr ||
           driver_->event_query(graph.second.copied) != cuda::kErrorNotReady;
  };
  return device_->is_idle() && AreOrphansOver() &&
         (!reducer_ || reducer_->are_uploads_over()) &&
         std::all_of(graphs_.begin(), graphs_.end(), is_copied);
}

void DeviceEngine::Fail(const Status& why) {
  is_usable_.store(false, std::memory_order_release);
  MutexLock guard(reason_mutex_);
  ++n_failures_;
  if (reason_.empty()) reason_ = why.message();
}

DeviceAnswer DeviceEngine::Failed(const Status& why) {
  if (why.code() == StatusCode::kClosed) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return DeviceAnswer::kRefused;
  }
  if (why.code() != StatusCode::kLimitExceeded) Fail(why);
  return DeviceAnswer::kUnhandled;
}

DeviceState DeviceEngine::state() {
  DeviceState state;
  state.is_usable = is_usable();
  state.refused = refused_.load(std::memory_order_relaxed);
  if (device_ != nullptr) state.device_bytes = device_->allocated_bytes();
  {
    MutexLock guard(mutex_);
    if (reducer_) {
      state.launches = reducer_->n_launches();
      state.uploads = reducer_->n_uploads();
    }
    state.rows = n_rows_;
    state.copies = n_copies_;
    state.copied_bytes = copied_bytes_;
  }
  MutexLock guard(reason_mutex_);
  state.reason = reason_;
  state.values_reason = values_reason_;
  state.failures = n_failures_;
  return state;
}

void DeviceEngine::CountRefused() {
  refused_.fetch_add(1, std::memory_order_relaxed);
}

// --- Rows --------------------------------------------------------------------

DeviceEngine::Outcome DeviceEngine::AddRows(std::int64_t step,
                                            std::span<Launch> launches,
                                            void* stream, ReadyList* ready) {
  Outcome outcome;
  if (!is_usable()) return {.others = DeviceAnswer::kUnhandled};
  MutexLock guard(mutex_);
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return {.others = Failed(scope.status())};
  const auto captured = device_->CapturedInto(StreamOf(stream));
  if (!captured.ok()) return {.others = Failed(captured.status())};
  const cuda::Place place{.stream = StreamOf(stream),
                          .graph = captured.value().id};
  while (!launches.empty()) {
    Result<Block*> block = place.graph != 0
                               ? GraphBlockFor(captured.value())
                               : BlockFor(step, launches.size(), ready);
    Status status = block.status();
    std::size_t n = launches.size();
    if (block.ok()) {
      n = std::min<std::size_t>(n, kRowsPerBlock - block.value()->n_results);
      status = LaunchInto(launches.first(n), place, block.value());
    }
    if (!status.ok()) {
      outcome.others = Failed(status);
      return outcome;
    }
    outcome.n_taken += n;
    launches = launches.subspan(n);
  }
  return outcome;
}

Status DeviceEngine::LaunchInto(std::span<Launch> launches, cuda::Place place,
                                Block* block) {
  std::vector<cuda::TensorEntry> entries;
  entries.reserve(launches.size());
  const std::uint32_t first = block->n_results;
  std::uint32_t n_results = first;
  for (Launch& launch : launches) {
    if (launch.target.count == 0) continue;
    entries.push_back(launch.entry);
    launch.target.result = n_results++;
  }
  // Also where it fails: some of them may have been launched.
  block->n_results = n_results;
  TDBG_RETURN_IF_ERROR(reducer_->Statistics(
      entries, block->results + first * sizeof(DeviceRow), place));
  n_rows_ += entries.size();
  for (const Launch& launch : launches) block->rows.push_back(launch.target);
  return Status::Ok();
}

// A block of the step with room for `n` more, or for some where no block has
// room for as many.
Result<DeviceEngine::Block*> DeviceEngine::BlockFor(std::int64_t step,
                                                    std::size_t n,
                                                    ReadyList* ready) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) {
    Block& block = found->second;
    if (block.rows.size() < kMaxRowsOfBlock &&
        block.n_results + std::min<std::size_t>(n, kRowsPerBlock) <=
            kRowsPerBlock) {
      return &block;
    }
    CloseBlock(step, std::move(block), ready);
    steps_.erase(found);
  }
  if (steps_.size() >= kMaxOpenSteps) {
    const auto oldest = steps_.begin();
    CloseBlock(oldest->first, std::move(oldest->second), ready);
    steps_.erase(oldest);
  }
  Reclaim();
  const auto piece = ring_->Take(kResultBytes);
  if (!piece) return Status::Closed("no block of results is free");
  Block block;
  block.results = piece->device;
  block.piece = piece;
  return &steps_.emplace(step, std::move(block)).first->second;
}

bool DeviceEngine::Repeat(std::int64_t step, std::uint32_t definition,
                          CallSite site, std::uint32_t of, CallSite of_site,
                          void* stream) {
  if (!is_usable()) return false;
  MutexLock guard(mutex_);
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return false;
  const auto captured = device_->CapturedInto(StreamOf(stream));
  if (!captured.ok()) return false;
  Block* block = nullptr;
  if (captured.value().id != 0) {
    const auto graph = graphs_.find(captured.value().id);
    if (graph != graphs_.end() && !graph->second.blocks.empty()) {
      block = &graph->second.blocks.back();
    }
  } else if (const auto found = steps_.find(step); found != steps_.end()) {
    block = &found->second;
  }
  if (block == nullptr) return false;
  const auto found = std::find_if(
      block->rows.rbegin(), block->rows.rend(), [&](const RowTarget& row) {
        return row.definition == of && row.site == of_site;
      });
  if (found == block->rows.rend()) return false;
  RowTarget again = *found;
  again.definition = definition;
  again.site = site;
  block->rows.push_back(again);
  return true;
}

void DeviceEngine::EndStep(std::int64_t step, ReadyList* ready) {
  if (device_ == nullptr) return;
  MutexLock guard(mutex_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return;
  const Device::Scope scope(*device_);
  CloseBlock(step, std::move(found->second), ready);
  steps_.erase(found);
}

void DeviceEngine::EndAllSteps(ReadyList* ready) {
  if (device_ == nullptr) return;
  MutexLock guard(mutex_);
  const Device::Scope scope(*device_);
  for (auto& [step, block] : steps_) CloseBlock(step, std::move(block), ready);
  steps_.clear();
}

void DeviceEngine::CloseBlock(std::int64_t step, Block block,
                              ReadyList* ready) {
  const std::size_t n_rows = block.rows.size();
  Result<std::unique_ptr<Fetch>> fetch = FetchBlock(block);
  if (!fetch.ok()) (void)Failed(fetch.status());
  ready->push_back({.step = step,
                    .n_rows = n_rows,
                    .completion = fetch.ok()
                                      ? RowsFrom(std::move(fetch).value(),
                                                 std::move(block.rows))
                                      : NeverCame(std::move(block.rows))});
}

// Where the driver fails the piece is not used again: who knows what is under
// way.
Result<std::unique_ptr<Fetch>> DeviceEngine::FetchBlock(const Block& block) {
  Result<EventHandle> event = TakeEvent();
  if (!event.ok()) return event.status();
  const Status joined = reducer_->Join(fetch_stream_);
  if (joined.code() == StatusCode::kLimitExceeded) {
    unfetched_.push_back({.piece = block.piece, .event = event.value()});
  }
  TDBG_RETURN_IF_ERROR(joined);
  TDBG_RETURN_IF_ERROR(FreeUnfetched());
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->memcpy_to_host(
          block.piece->host, block.piece->device,
          std::max<std::size_t>(block.n_results, 1) * sizeof(DeviceRow),
          fetch_stream_),
      "cuMemcpyDtoHAsync"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->event_record(event.value(), fetch_stream_), "cuEventRecord"));
  return std::make_unique<Fetch>(shared_from_this(), block.piece,
                                 event.value());
}

// After a join: all that was launched into them is before this.
Status DeviceEngine::FreeUnfetched() {
  while (!unfetched_.empty()) {
    const Orphan& orphan = unfetched_.back();
    TDBG_RETURN_IF_ERROR(driver_->Check(
        driver_->event_record(orphan.event, fetch_stream_), "cuEventRecord"));
    GiveBack(orphan.piece, orphan.event, false);
    unfetched_.pop_back();
  }
  return Status::Ok();
}

// --- Counts ------------------------------------------------------------------

Status DeviceEngine::StartFetch(const cuda::ResultRing::Piece& piece,
                                std::size_t n_bytes, cuda::Stream stream,
                                EventHandle event) {
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->event_record(event, stream), "cuEventRecord"));
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->stream_wait_event(fetch_stream_, event, 0),
                     "cuStreamWaitEvent"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->memcpy_to_host(piece.host, piece.device, n_bytes, fetch_stream_),
      "cuMemcpyDtoHAsync"));
  return driver_->Check(driver_->event_record(event, fetch_stream_),
                        "cuEventRecord");
}

template <typename Run>
DeviceAnswer DeviceEngine::Count(std::size_t n_bytes, void* stream, Run run,
                                 std::unique_ptr<Fetch>* fetch) {
  if (!is_usable()) return DeviceAnswer::kUnhandled;
  MutexLock guard(mutex_);
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return Failed(scope.status());
  const auto captured = device_->CapturedInto(StreamOf(stream));
  if (!captured.ok() || captured.value().id != 0)
    return DeviceAnswer::kUnhandled;
  if (n_bytes > kRingBytes) return DeviceAnswer::kUnhandled;
  Reclaim();
  Result<EventHandle> event = TakeEvent();
  if (!event.ok()) return Failed(event.status());
  const auto piece = ring_->Take(n_bytes);
  if (!piece) {
    GiveBack(std::nullopt, event.value(), true);
    return Failed(Status::Closed("no room for results is free"));
  }
  Status status = run(piece->device, StreamOf(stream));
  if (status.ok()) {
    status = StartFetch(*piece, n_bytes, StreamOf(stream), event.value());
  }
  if (!status.ok()) return Failed(status);
  *fetch = std::make_unique<Fetch>(shared_from_this(), piece, event.value());
  return DeviceAnswer::kCaptured;
}

DeviceAnswer DeviceEngine::CountUnits(cuda::UnitEntry entry, void* stream,
                                      std::unique_ptr<Fetch>* fetch) {
  // Before it is multiplied.
  if (entry.n_units > kRingBytes) return DeviceAnswer::kUnhandled;
  return Count(
      2 * entry.n_units * sizeof(std::uint64_t), stream,
      [&](cuda::DeviceAddress results, cuda::Stream on) {
        entry.counts = results;
        return reducer_->CountUnits(entry, on);
      },
      fetch);
}

DeviceAnswer DeviceEngine::CountBins(cuda::BinEntry entry, void* stream,
                                     std::unique_ptr<Fetch>* fetch) {
  return Count(
      cuda::kBins * sizeof(std::uint32_t), stream,
      [&](cuda::DeviceAddress results, cuda::Stream on) {
        entry.bins = results;
        return reducer_->CountBins(entry, on);
      },
      fetch);
}

}  // namespace tdbg

// Graphs, copies of values, and what all that is under way shares.

#include <algorithm>
#include <utility>

#include "capture/device_engine.h"

namespace tdbg {

using cuda::Device;
using cuda::EventHandle;
using cuda::StreamOf;

namespace {

// What the driver calls when a graph is gone, from a thread of its own, which
// may not call the driver.
using Gone = std::shared_ptr<std::atomic<bool>>;
void SetGone(void* data) {
  const std::unique_ptr<Gone> gone(static_cast<Gone*>(data));
  (*gone)->store(true);
}

}  // namespace

// --- Graphs ------------------------------------------------------------------

Result<DeviceEngine::GraphRows*> DeviceEngine::GraphFor(
    const Device::Captured& captured) {
  if (const auto found = graphs_.find(captured.id); found != graphs_.end()) {
    return &found->second;
  }
  ForgetGraphs();
  GraphRows rows{.is_gone = std::make_shared<std::atomic<bool>>(false),
                 .blocks = {},
                 .copied = nullptr};
  auto gone = std::make_unique<Gone>(rows.is_gone);
  cuda::UserObject object = nullptr;
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->user_object_create(&object, gone.get(), SetGone,
                                                 1, cuda::kUserObjectNoSync),
                     "cuUserObjectCreate"));
  (void)gone.release();  // The object's.
  const Status status =
      driver_->Check(driver_->graph_retain_user_object(
                         captured.graph, object, 1, cuda::kUserObjectMove),
                     "cuGraphRetainUserObject");
  if (!status.ok()) {
    (void)driver_->user_object_release(object, 1);
    return status;
  }
  return &graphs_.emplace(captured.id, std::move(rows)).first->second;
}

Result<DeviceEngine::Block*> DeviceEngine::GraphBlockFor(
    const Device::Captured& captured) {
  Result<GraphRows*> graph = GraphFor(captured);
  if (!graph.ok()) return graph.status();
  std::vector<Block>& blocks = graph.value()->blocks;
  if (!blocks.empty() && blocks.back().n_results < kRowsPerBlock) {
    return &blocks.back();
  }
  Block block;
  if (free_blocks_.empty()) {
    const auto results = device_->Allocate(kResultBytes);
    if (!results.ok()) return results.status();
    block.results = results.value();
  } else {
    block.results = free_blocks_.back();
    free_blocks_.pop_back();
  }
  blocks.push_back(std::move(block));
  return &blocks.back();
}

// What graphs held that are gone is free, once the last copy of it is over.
void DeviceEngine::ForgetGraphs() {
  for (auto it = graphs_.begin(); it != graphs_.end();) {
    const GraphRows& graph = it->second;
    if (!graph.is_gone->load() ||
        (graph.copied != nullptr &&
         driver_->event_query(graph.copied) == cuda::kErrorNotReady)) {
      ++it;
      continue;
    }
    for (const Block& block : graph.blocks) {
      free_blocks_.push_back(block.results);
    }
    if (graph.copied != nullptr) {
      GiveBack(std::nullopt, graph.copied, true);
    }
    reducer_->Forget(it->first);
    it = graphs_.erase(it);
  }
}

std::uint64_t DeviceEngine::CaptureId(void* stream) {
  if (!is_usable()) return 0;
  const Device::Scope scope(*device_);
  const auto captured = device_->CapturedInto(StreamOf(stream));
  return scope.status().ok() && captured.ok() ? captured.value().id : 0;
}

bool DeviceEngine::IsFree(void* stream) {
  if (!is_usable()) return false;
  const Device::Scope scope(*device_);
  const auto captured = device_->CapturedInto(StreamOf(stream));
  return scope.status().ok() && captured.ok() && captured.value().id == 0;
}

bool DeviceEngine::Replayed(std::uint64_t graph, std::int64_t step,
                            void* stream, ReadyList* ready) {
  if (!is_usable()) return false;
  MutexLock guard(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return false;
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return Failed(scope.status()), false;
  const auto captured = device_->CapturedInto(StreamOf(stream));
  if (!captured.ok() || captured.value().id != 0) return false;
  for (const Block& block : found->second.blocks) {
    Result<std::unique_ptr<Fetch>> fetch =
        FetchGraphBlock(block, StreamOf(stream));
    if (!fetch.ok()) (void)Failed(fetch.status());
    ready->push_back(
        {.step = step,
         .n_rows = block.rows.size(),
         .completion = fetch.ok()
                           ? RowsFrom(std::move(fetch).value(), block.rows)
                           : NeverCame(block.rows)});
  }
  const Status marked = MarkCopied(&found->second, StreamOf(stream));
  if (!marked.ok()) (void)Failed(marked);
  return true;
}

// The copies of a replay on another stream are before it, too.
Status DeviceEngine::MarkCopied(GraphRows* graph, cuda::Stream stream) {
  if (graph->copied == nullptr) {
    Result<EventHandle> event = TakeEvent();
    if (!event.ok()) return event.status();
    graph->copied = event.value();
  } else {
    TDBG_RETURN_IF_ERROR(
        driver_->Check(driver_->stream_wait_event(stream, graph->copied, 0),
                       "cuStreamWaitEvent"));
  }
  return driver_->Check(driver_->event_record(graph->copied, stream),
                        "cuEventRecord");
}

// On the stream of the replay: the next one overwrites the block.
Result<std::unique_ptr<Fetch>> DeviceEngine::FetchGraphBlock(
    const Block& block, cuda::Stream stream) {
  Reclaim();
  Result<EventHandle> event = TakeEvent();
  if (!event.ok()) return event.status();
  const std::size_t n_bytes =
      std::max<std::size_t>(block.n_results, 1) * sizeof(cuda::DeviceRow);
  const auto piece = ring_->Take(n_bytes);
  if (!piece) {
    GiveBack(std::nullopt, event.value(), true);
    return Status::Closed("no room for results is free");
  }
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->memcpy_to_host(piece->host, block.results, n_bytes, stream),
      "cuMemcpyDtoHAsync"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->event_record(event.value(), stream), "cuEventRecord"));
  return std::make_unique<Fetch>(shared_from_this(), piece, event.value());
}

// --- Values ------------------------------------------------------------------

bool DeviceEngine::CanCopy(std::span<std::byte> staging) {
  if (!is_usable()) return false;
  MutexLock guard(mutex_);
  if (uses_lock_) return true;
  const Device::Scope scope(*device_);
  Status status = scope.status();
  if (status.ok()) status = lock_->Acquire(*driver_, staging);
  uses_lock_ = status.ok();
  if (!status.ok()) {
    MutexLock reason_guard(reason_mutex_);
    if (values_reason_.empty()) {
      ++n_failures_;
      values_reason_ = status.message();
    }
  }
  return uses_lock_;
}

std::unique_ptr<Completion> DeviceEngine::Copy(const void* from,
                                               std::span<std::byte> to,
                                               void* stream) {
  MutexLock guard(mutex_);
  const Device::Scope scope(*device_);
  Status status = scope.status();
  Result<EventHandle> event(status);
  if (status.ok()) {
    Reclaim();
    event = TakeEvent();
    status = event.status();
  }
  if (!status.ok()) {
    (void)Failed(status);
    return NeverCame();
  }
  status = StartCopy(from, to, StreamOf(stream), event.value());
  if (!status.ok()) {
    (void)Failed(status);
    return BrokenCopy(shared_from_this());
  }
  ++n_copies_;
  copied_bytes_ += to.size();
  return ValuesFrom(
      std::make_unique<Fetch>(shared_from_this(), std::nullopt, event.value()));
}

Status DeviceEngine::StartCopy(const void* from, std::span<std::byte> to,
                               cuda::Stream stream, EventHandle event) {
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->event_record(event, stream), "cuEventRecord"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->stream_wait_event(copy_stream_, event, 0), "cuStreamWaitEvent"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->memcpy_to_host(to.data(), reinterpret_cast<std::uintptr_t>(from),
                              to.size(), copy_stream_),
      "cuMemcpyDtoHAsync"));
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->event_record(event, copy_stream_), "cuEventRecord"));
  return driver_->Check(driver_->event_record(last_copy_, copy_stream_),
                        "cuEventRecord");
}

void DeviceEngine::Fence(void* stream) {
  // Also of a device that has failed: its copies may go on.
  if (device_ == nullptr) return;
  MutexLock guard(mutex_);
  if (!uses_lock_) return;
  const Device::Scope scope(*device_);
  if (!scope.status().ok()) return (void)Failed(scope.status());
  const auto captured = device_->CapturedInto(StreamOf(stream));
  // A graph cannot wait for what is outside of it.
  if (!captured.ok() || captured.value().id != 0) return;
  if (driver_->event_query(last_copy_) == cuda::kSuccess) return;
  const Status status = driver_->Check(
      driver_->stream_wait_event(StreamOf(stream), last_copy_, 0),
      "cuStreamWaitEvent");
  if (!status.ok()) (void)Failed(status);
}

// --- Under way ---------------------------------------------------------------

Completion::Answer DeviceEngine::Query(EventHandle event) {
  const Device::Scope scope(*device_);
  Status status = scope.status();
  if (status.ok()) {
    const int result = driver_->event_query(event);
    if (result == cuda::kErrorNotReady) return Completion::Answer::kPending;
    status = driver_->Check(result, "cuEventQuery");
  }
  if (status.ok()) return Completion::Answer::kDone;
  Fail(status);
  return Completion::Answer::kFailed;
}

bool DeviceEngine::AreCopiesOver() {
  const Device::Scope scope(*device_);
  return driver_->stream_query(copy_stream_) != cuda::kErrorNotReady;
}

Result<EventHandle> DeviceEngine::TakeEvent() {
  {
    MutexLock guard(pool_mutex_);
    if (!free_events_.empty()) {
      EventHandle event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  return device_->NewEvent();
}

void DeviceEngine::GiveBack(const std::optional<cuda::ResultRing::Piece>& piece,
                            EventHandle event, bool is_over) {
  MutexLock guard(pool_mutex_);
  if (!is_over) {
    orphans_.push_back({.piece = piece, .event = event});
    return;
  }
  if (piece) ring_->GiveBack(*piece);
  free_events_.push_back(event);
}

bool DeviceEngine::AreOrphansOver() {
  MutexLock guard(pool_mutex_);
  return std::none_of(
      orphans_.begin(), orphans_.end(), [&](const Orphan& orphan) {
        return driver_->event_query(orphan.event) == cuda::kErrorNotReady;
      });
}

// Takes back what was given back too early and is over now.
void DeviceEngine::Reclaim() {
  MutexLock guard(pool_mutex_);
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    if (driver_->event_query(orphan.event) != cuda::kSuccess) return false;
    if (orphan.piece) ring_->GiveBack(*orphan.piece);
    free_events_.push_back(orphan.event);
    return true;
  });
}

}  // namespace tdbg

// Streams, events and graphs of the fake driver.

#include "fake_cuda/state.h"

using fakecuda::CurrentContext;
using fakecuda::Mark;
using fakecuda::State;

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidHandle = 400;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureMerge = 902;
constexpr int kCaptureUnjoined = 904;
constexpr int kCaptureIsolation = 905;
constexpr int kCapturedEvent = 907;

// What nobody may ask of such a stream, in whatever mode.
bool IsCaptured(const CUstream_st* stream) {
  if (stream->capture == nullptr) return false;
  stream->capture->is_invalid = true;
  return true;
}

void EndStream(State* state, CUstream_st* stream,
               std::unique_lock<std::mutex>* lock) {
  stream->is_ending = true;
  state->changed.notify_all();
  lock->unlock();
  stream->thread.join();
  delete stream;
}

}  // namespace

FAKECUDA_EXPORT int cuStreamCreate(CUstream_st** stream, unsigned flags) {
  FAKECUDA_CALL(true);
  *stream = new CUstream_st;
  (*stream)->is_blocking = flags == 0;
  (*stream)->context = CurrentContext();
  state.streams.insert(*stream);
  state.StartThread(*stream);
  return 0;
}

FAKECUDA_EXPORT int cuStreamDestroy_v2(CUstream_st* stream) {
  FAKECUDA_CALL(true);
  if (state.streams.erase(stream) == 0) return kInvalidHandle;
  EndStream(&state, stream, &lock);
  return 0;
}

FAKECUDA_EXPORT int cuStreamQuery(CUstream_st* handle) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  const CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (IsCaptured(stream)) return kCaptureUnsupported;
  return stream->queue.empty() && !stream->is_busy ? 0 : 600;
}

FAKECUDA_EXPORT int cuStreamSynchronize(CUstream_st* handle) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (IsCaptured(stream)) return kCaptureUnsupported;
  state.changed.wait(lock,
                     [&] { return stream->queue.empty() && !stream->is_busy; });
  return stream->context->error;
}

// --- Events ------------------------------------------------------------------

FAKECUDA_EXPORT int cuEventCreate(CUevent_st** event, unsigned) {
  FAKECUDA_CALL(true);
  *event = new CUevent_st;
  (*event)->context = CurrentContext();
  state.events.insert(*event);
  return 0;
}

FAKECUDA_EXPORT int cuEventDestroy_v2(CUevent_st* event) {
  FAKECUDA_CALL(true);
  if (state.events.erase(event) == 0) return kInvalidHandle;
  delete event;
  return 0;
}

FAKECUDA_EXPORT int cuEventRecord(CUevent_st* event, CUstream_st* handle) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr || !state.events.contains(event) ||
      event->context != stream->context) {
    return kInvalidHandle;
  }
  event->capture = stream->capture;
  event->stream = stream;
  event->mark = std::make_shared<Mark>();
  if (stream->capture != nullptr) return 0;
  state.Enqueue(stream, [&state, stream, mark = event->mark] {
    const std::unique_lock<std::mutex> inner(state.mutex);
    mark->is_done = true;
    // At once: who sees the event may look at its stream before the thread
    // does.
    stream->is_busy = false;
    state.changed.notify_all();
  });
  return 0;
}

FAKECUDA_EXPORT int cuEventQuery(CUevent_st* event) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  if (!state.events.contains(event)) return kInvalidHandle;
  if (event->capture != nullptr) {
    event->capture->is_invalid = true;
    return kCapturedEvent;
  }
  return event->mark == nullptr || event->mark->is_done ? 0 : 600;
}

FAKECUDA_EXPORT int cuStreamWaitEvent(CUstream_st* handle, CUevent_st* event,
                                      unsigned) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr || !state.events.contains(event)) return kInvalidHandle;
  if (event->capture != nullptr) {
    if (stream->capture != nullptr && stream->capture != event->capture) {
      return kCaptureMerge;
    }
    CUgraph_st& graph = *event->capture;
    stream->capture = &graph;
    graph.streams.insert(stream);
    if (event->stream != stream) graph.unjoined.erase(event->stream);
    if (stream != graph.origin) graph.unjoined.insert(stream);
    return 0;
  }
  if (event->mark == nullptr) return 0;
  if (stream->capture != nullptr) {
    stream->capture->is_invalid = true;
    return kCaptureIsolation;
  }
  state.Enqueue(stream, [&state, stream, mark = event->mark] {
    std::unique_lock<std::mutex> inner(state.mutex);
    state.changed.wait(
        inner, [&] { return mark->is_done || stream->context->error != 0; });
  });
  return 0;
}

// --- Graphs ------------------------------------------------------------------

FAKECUDA_EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKECUDA_CALL(false);
  std::swap(*mode, fakecuda::CaptureMode());
  return 0;
}

FAKECUDA_EXPORT int cuStreamBeginCapture_v2(CUstream_st* handle, int mode) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr || handle == nullptr) return kCaptureUnsupported;
  if (stream->capture != nullptr) return kInvalidValue;
  auto* graph = new CUgraph_st;
  graph->id = ++state.last_capture;
  graph->mode = mode;
  graph->streams.insert(stream);
  graph->origin = stream;
  state.graphs.insert(graph);
  if (mode == 0) ++state.n_global_captures;
  stream->capture = graph;
  return 0;
}

FAKECUDA_EXPORT int cuStreamEndCapture(CUstream_st* handle,
                                       CUgraph_st** graph) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr || stream->capture == nullptr) return kInvalidValue;
  *graph = stream->capture;
  if ((*graph)->mode == 0) --state.n_global_captures;
  for (CUstream_st* captured : (*graph)->streams) captured->capture = nullptr;
  if ((*graph)->is_invalid) return kCaptureInvalidated;
  return (*graph)->unjoined.empty() ? 0 : kCaptureUnjoined;
}

FAKECUDA_EXPORT int cuStreamGetCaptureInfo_v2(CUstream_st* handle, int* status,
                                              std::uint64_t* id,
                                              CUgraph_st** graph, const void**,
                                              std::size_t*) {
  FAKECUDA_CALL(true);
  const CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *status = stream->capture == nullptr ? 0 : 1;
  if (stream->capture == nullptr) return 0;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = stream->capture;
  return 0;
}

FAKECUDA_EXPORT int cuUserObjectCreate(CUuserObject_st** object, void* data,
                                       void (*destroy)(void*), unsigned,
                                       unsigned) {
  FAKECUDA_CALL(true);
  *object = new CUuserObject_st{
      std::make_shared<fakecuda::UserObjectData>(destroy, data)};
  return 0;
}

// Takes the caller's reference over, as CU_GRAPH_USER_OBJECT_MOVE says.
FAKECUDA_EXPORT int cuGraphRetainUserObject(CUgraph_st* graph,
                                            CUuserObject_st* object, unsigned,
                                            unsigned) {
  FAKECUDA_CALL(true);
  if (!state.graphs.contains(graph)) return kInvalidHandle;
  graph->objects.push_back(object->data);
  delete object;
  return 0;
}

FAKECUDA_EXPORT int cuUserObjectRelease(CUuserObject_st* object, unsigned) {
  FAKECUDA_CALL(true);
  delete object;
  return 0;
}

FAKECUDA_EXPORT int cuGraphInstantiateWithFlags(CUgraphExec_st** executable,
                                                CUgraph_st* graph,
                                                unsigned long long) {
  FAKECUDA_CALL(true);
  if (!state.graphs.contains(graph)) return kInvalidHandle;
  *executable = new CUgraphExec_st{graph->operations, graph->objects};
  return 0;
}

FAKECUDA_EXPORT int cuGraphLaunch(CUgraphExec_st* executable,
                                  CUstream_st* handle) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  for (const auto& operation : executable->operations) {
    state.Enqueue(stream, operation);
  }
  return 0;
}

FAKECUDA_EXPORT int cuGraphDestroy(CUgraph_st* graph) {
  FAKECUDA_CALL(true);
  if (state.graphs.erase(graph) == 0) return kInvalidHandle;
  for (CUevent_st* event : state.events) {
    if (event->capture != graph) continue;
    event->capture = nullptr;
    event->mark = nullptr;
  }
  delete graph;
  return 0;
}

FAKECUDA_EXPORT int cuGraphExecDestroy(CUgraphExec_st* executable) {
  FAKECUDA_CALL(true);
  delete executable;
  return 0;
}

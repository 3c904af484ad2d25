#include "fake_cuda/state.h"

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "fake_cuda/control.h"

namespace fakecuda {

UserObjectData::UserObjectData(void (*f)(void*), void* p)
    : destroy(f), data(p) {
  ++State::Get().n_objects;
}

// REQUIRES: the mutex is held, as it is wherever graphs go.
UserObjectData::~UserObjectData() {
  --State::Get().n_objects;
  destroy(data);
}

State& State::Get() {
  static State* const kState = [] {
    auto* state = new State;
    const char* text = std::getenv("TDBG_FAKE_CUDA");
    std::istringstream words(text == nullptr ? "" : text);
    for (std::string word; words >> word;) {
      const std::size_t at = word.find('=');
      if (at == std::string::npos) continue;
      const std::string key = word.substr(0, at);
      std::string value = word.substr(at + 1);
      if (key == "devices") state->n_devices = std::atoi(value.c_str());
      if (key == "delay_us") state->delay_us = std::atoi(value.c_str());
      if (key == "hold") state->is_held = value == "1";
      if (key == "fail") {
        for (char& c : value) c = c == ':' ? ' ' : c;
        std::istringstream parts(value);
        std::string function;
        Failure failure;
        parts >> function >> failure.nth >> failure.code;
        state->failures[function] = failure;
      }
    }
    return state;
  }();
  return *kState;
}

std::vector<CUctx_st*>& ContextStack() {
  thread_local std::vector<CUctx_st*> stack;
  return stack;
}

int& CaptureMode() {
  thread_local int mode = 0;  // Global.
  return mode;
}

bool& IsExempt() {
  thread_local bool is_exempt = false;
  return is_exempt;
}

CUctx_st* CurrentContext() {
  return ContextStack().empty() ? nullptr : ContextStack().back();
}

bool State::Contains(const std::map<std::uintptr_t, Range>& ranges,
                     std::uintptr_t p, std::size_t n) {
  auto it = ranges.upper_bound(p);
  if (it == ranges.begin()) return false;
  --it;
  return p - it->first <= it->second.n && n <= it->second.n - (p - it->first);
}

int State::Called(const char* function, bool needs_context) {
  if (!IsExempt()) ++calls[function];
  if (const auto found = failures.find(function);
      found != failures.end() && !IsExempt()) {
    Failure& failure = found->second;
    ++failure.n_calls;
    if (failure.nth == 0 || failure.nth == failure.n_calls) return failure.code;
  }
  if (!is_initialized && std::string(function) != "cuInit" &&
      std::string(function) != "cuGetErrorName") {
    return 3;  // NOT_INITIALIZED
  }
  if (!needs_context) return 0;
  const CUctx_st* context = CurrentContext();
  if (context == nullptr || context->n_retained == 0) return 201;
  return context->error;
}

CUstream_st* State::StreamOf(CUstream_st* handle) {
  CUctx_st* context = CurrentContext();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 2) {
    // The default stream would wait for what is only being captured.
    for (const CUstream_st* other : streams) {
      if (number < 2 && other->is_blocking && other->capture != nullptr) {
        return nullptr;
      }
    }
    std::unique_ptr<CUstream_st>& stream =
        number < 2
            ? null_streams[context->device]
            : thread_streams[{context->device, std::this_thread::get_id()}];
    if (stream == nullptr) {
      stream = std::make_unique<CUstream_st>();
      stream->context = context;
      StartThread(stream.get());
    }
    return stream.get();
  }
  if (!streams.contains(handle) || handle->context != context) return nullptr;
  return handle;
}

void State::Enqueue(CUstream_st* stream, Operation operation) {
  if (stream->capture != nullptr) {
    stream->capture->operations.push_back(std::move(operation));
    if (stream != stream->capture->origin) {
      stream->capture->unjoined.insert(stream);
    }
    return;
  }
  stream->queue.push_back(std::move(operation));
  changed.notify_all();
}

void State::StartThread(CUstream_st* stream) {
  stream->thread = std::thread([this, stream] {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] {
        return (!stream->queue.empty() && !is_held && !stream->is_held) ||
               (stream->queue.empty() && stream->is_ending);
      });
      if (stream->queue.empty()) return;
      const Operation operation = std::move(stream->queue.front());
      stream->queue.pop_front();
      stream->is_busy = true;
      const int delay = delay_us;
      const bool is_broken = stream->context->error != 0;
      lock.unlock();
      if (delay > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
      }
      if (!is_broken) operation();
      lock.lock();
      stream->is_busy = false;
      changed.notify_all();
    }
  });
}

void State::Drain(std::unique_lock<std::mutex>* lock, const CUctx_st* context) {
  const auto is_idle = [&](const CUstream_st& stream) {
    return stream.context != context ||
           (stream.queue.empty() && !stream.is_busy);
  };
  const auto is_over = [&] {
    for (const auto& [device, stream] : null_streams) {
      if (!is_idle(*stream)) return false;
    }
    for (const auto& [of, stream] : thread_streams) {
      if (!is_idle(*stream)) return false;
    }
    for (const CUstream_st* stream : streams) {
      if (!is_idle(*stream)) return false;
    }
    return true;
  };
  if (!is_over()) ++n_drained;
  changed.wait(*lock, is_over);
}

bool State::IsForbidden() {
  if (n_global_captures == 0 || CaptureMode() == 2) return false;
  for (CUstream_st* stream : streams) {
    if (stream->capture != nullptr) stream->capture->is_invalid = true;
  }
  return true;
}

void State::Break(CUctx_st* context, int code) {
  context->error = code;
  changed.notify_all();
}

}  // namespace fakecuda

using fakecuda::State;

FAKECUDA_EXPORT void fakecuda_reset(int n_devices) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  state.n_devices = n_devices;
  state.delay_us = 0;
  state.is_held = false;
  state.failures.clear();
  state.calls.clear();
  state.copied = 0;
  state.n_drained = 0;
  for (auto& [device, context] : state.contexts) context.error = 0;
  state.changed.notify_all();
}

FAKECUDA_EXPORT void fakecuda_fail(const char* function, int nth, int code) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  state.failures[function] = {.nth = nth, .code = code};
}

FAKECUDA_EXPORT void fakecuda_exempt(int on) { fakecuda::IsExempt() = on != 0; }

FAKECUDA_EXPORT void fakecuda_forget() {
  State& state = State::Get();
  std::vector<CUstream_st*> streams;
  {
    const std::unique_lock<std::mutex> lock(state.mutex);
    for (CUstream_st* stream : state.streams) {
      stream->is_held = false;
      stream->is_ending = true;
      streams.push_back(stream);
    }
    state.streams.clear();
    state.is_held = false;
    state.changed.notify_all();
  }
  for (CUstream_st* stream : streams) {
    stream->thread.join();
    delete stream;
  }
  const std::unique_lock<std::mutex> lock(state.mutex);
  for (const CUevent_st* event : state.events) delete event;
  for (const CUmod_st* module : state.modules) delete module;
  for (const auto& [p, range] : state.device_memory) {
    std::free(reinterpret_cast<void*>(p));
  }
  for (const auto& [p, range] : state.pinned) {
    std::free(reinterpret_cast<void*>(p));
  }
  state.events.clear();
  state.modules.clear();
  state.device_memory.clear();
  state.pinned.clear();
  state.registered.clear();
  for (auto& [device, context] : state.contexts) context.n_retained = 0;
}

FAKECUDA_EXPORT int fakecuda_calls(const char* function) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  return state.calls[function];
}

FAKECUDA_EXPORT void fakecuda_hold(int on) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  state.is_held = on != 0;
  state.changed.notify_all();
}

FAKECUDA_EXPORT void fakecuda_hold_stream(void* stream, int on) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  static_cast<CUstream_st*>(stream)->is_held = on != 0;
  state.changed.notify_all();
}

FAKECUDA_EXPORT void fakecuda_delay(int microseconds) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  state.delay_us = microseconds;
}

FAKECUDA_EXPORT long fakecuda_live(const char* what) {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  const auto bytes = [](const auto& ranges) {
    long n = 0;
    for (const auto& [p, range] : ranges) n += static_cast<long>(range.n);
    return n;
  };
  const std::string name = what;
  if (name == "device") return bytes(state.device_memory);
  if (name == "pinned") return bytes(state.pinned);
  if (name == "registered") return static_cast<long>(state.registered.size());
  if (name == "streams") return static_cast<long>(state.streams.size());
  if (name == "events") return static_cast<long>(state.events.size());
  if (name == "modules") return static_cast<long>(state.modules.size());
  if (name == "graphs") return static_cast<long>(state.graphs.size());
  if (name == "objects") return state.n_objects;
  long n = 0;
  for (const auto& [device, context] : state.contexts) n += context.n_retained;
  return n;
}

FAKECUDA_EXPORT int fakecuda_drained() {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  return state.n_drained;
}

FAKECUDA_EXPORT long fakecuda_copied() {
  State& state = State::Get();
  const std::unique_lock<std::mutex> lock(state.mutex);
  return state.copied;
}

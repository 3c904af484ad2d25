// The inside of the fake driver: contexts, streams, events, memory, graphs.
//
// Thread safety: State::mutex guards everything but what a stream's thread
// runs.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

// The driver's handles are pointers to these.
struct CUctx_st {
  int device = 0;
  int n_retained = 0;
  int error = 0;  // Sticky, as after an illegal address.
};
struct CUmod_st {
  CUctx_st* context = nullptr;
  std::map<std::string, std::unique_ptr<struct CUfunc_st>> functions;
};
struct CUfunc_st {
  std::string name;
  CUctx_st* context = nullptr;
};

namespace fakecuda {

using Operation = std::function<void()>;

// One recording of an event.
struct Mark {
  bool is_done = false;
};

struct UserObjectData {
  void (*destroy)(void*);
  void* data;
  UserObjectData(void (*f)(void*), void* p);
  ~UserObjectData();
};

}  // namespace fakecuda

struct CUevent_st {
  CUctx_st* context = nullptr;
  std::shared_ptr<fakecuda::Mark> mark;  // The last; null: never recorded.
  struct CUgraph_st* capture = nullptr;  // The graph that recorded it,
  struct CUstream_st* stream = nullptr;  // and the stream, in that graph.
};
struct CUuserObject_st {
  std::shared_ptr<fakecuda::UserObjectData> data;
};
struct CUgraph_st {
  std::uint64_t id = 0;
  int mode = 0;
  bool is_invalid = false;
  std::set<struct CUstream_st*> streams;  // That are captured into it.
  struct CUstream_st* origin = nullptr;
  std::set<struct CUstream_st*> unjoined;  // Forked from it, and not back.
  std::vector<fakecuda::Operation> operations;
  std::vector<std::shared_ptr<fakecuda::UserObjectData>> objects;
};
struct CUgraphExec_st {
  std::vector<fakecuda::Operation> operations;
  std::vector<std::shared_ptr<fakecuda::UserObjectData>> objects;
};
struct CUstream_st {
  CUctx_st* context = nullptr;
  CUgraph_st* capture = nullptr;
  bool is_blocking = false;  // With the default stream.
  std::deque<fakecuda::Operation> queue;
  bool is_busy = false;
  bool is_held = false;
  bool is_ending = false;
  std::thread thread;
};

namespace fakecuda {

struct Range {
  std::size_t n = 0;
  CUctx_st* context = nullptr;
};

struct Failure {
  int nth = 0;  // 0: every call.
  int code = 0;
  int n_calls = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;

  int n_devices = 2;
  int delay_us = 0;
  bool is_held = false;
  bool is_initialized = false;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  long copied = 0;
  int n_drained = 0;

  std::map<int, CUctx_st> contexts;  // By device.
  std::map<int, std::unique_ptr<CUstream_st>> null_streams;
  std::map<std::pair<int, std::thread::id>, std::unique_ptr<CUstream_st>>
      thread_streams;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<CUmod_st*> modules;
  std::set<CUgraph_st*> graphs;
  std::map<std::uintptr_t, Range> device_memory;
  std::map<std::uintptr_t, Range> pinned;
  std::map<std::uintptr_t, Range> registered;
  long n_objects = 0;
  std::uint64_t last_capture = 0;
  int n_global_captures = 0;

  // Never destroyed: streams' threads may outlive main.
  static State& Get();

  // Whether [p, p + n) lies in one range of `ranges`.
  static bool Contains(const std::map<std::uintptr_t, Range>& ranges,
                       std::uintptr_t p, std::size_t n);

  // REQUIRES: mutex is held, for all that follow.

  // What this call of `function` is to answer; 0: go on.
  int Called(const char* function, bool needs_context = true);
  // The stream behind a handle, or null: none of the current context.
  CUstream_st* StreamOf(CUstream_st* handle);
  // Puts the operation on the stream, or into the graph it is captured into.
  void Enqueue(CUstream_st* stream, Operation operation);
  void StartThread(CUstream_st* stream);
  // Waits until the streams of `context` have nothing to do.
  void Drain(std::unique_lock<std::mutex>* lock, const CUctx_st* context);
  // Whether a capture forbids this call to this thread; it is then invalid.
  [[nodiscard]] bool IsForbidden();
  void Break(CUctx_st* context, int code);
};

// Of the calling thread.
std::vector<CUctx_st*>& ContextStack();
int& CaptureMode();
CUctx_st* CurrentContext();
bool& IsExempt();

// An operation that launches the kernel; empty where the emulator has none of
// this name.  `arguments` are copied.
Operation LaunchOf(CUfunc_st* function, unsigned grid, unsigned block,
                   unsigned shared_bytes, void** arguments);

}  // namespace fakecuda

#define FAKECUDA_EXPORT extern "C" __attribute__((visibility("default")))
// Locks the state, counts the call and answers what was injected for it.
#define FAKECUDA_CALL(needs_context)                   \
  ::fakecuda::State& state = ::fakecuda::State::Get(); \
  std::unique_lock<std::mutex> lock(state.mutex);      \
  if (const int code = state.Called(__func__, needs_context); code) return code

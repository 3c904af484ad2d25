#include "cuda_emulator/emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "cuda_emulator/fibers.h"
#include "cuda_emulator/intrinsics.h"
#include "cuda_emulator/kernels.h"

namespace tdbg::cuda_emulator {
namespace {

constexpr unsigned kLanes = 32;

enum class Wait { kNothing, kWarp, kBlock };

struct Thread {
  Fiber fiber;
  Place place;
  Wait wait = Wait::kNothing;
  // Of the operation at which it waits.
  const char* operation = nullptr;
  std::uint64_t given = 0;
  struct Block* block = nullptr;
  struct Warp* warp = nullptr;
};

// What a warp exchanges: two in turn, since lanes leave one while others come
// to the next.
struct Warp {
  std::vector<Thread*> lanes;
  std::uint64_t given[kLanes] = {};
  bool is_done = false;
};

struct Block {
  std::vector<Thread*> threads;
  std::vector<std::byte> shared;
};

struct Launch {
  Invoke kernel;
  void** args;
};

thread_local Thread* t_here = nullptr;
thread_local const Launch* t_launch = nullptr;
thread_local std::mt19937_64 t_random;
// Threads of blocks, kept for the next kernel: their stacks cost most.
thread_local std::vector<std::unique_ptr<Thread>> t_threads;

void Body(void* self) {
  t_here = static_cast<Thread*>(self);
  t_launch->kernel(t_launch->args);
}

// Runs the lanes of a warp to where they wait next.  Returns whether any ran.
bool Advance(Warp* warp) {
  bool ran = false;
  for (Thread* thread : warp->lanes) {
    if (thread->fiber.is_done() || thread->wait != Wait::kNothing) continue;
    t_here = thread;
    thread->fiber.Resume();
    ran = true;
  }
  t_here = nullptr;
  if (!ran) return false;
  // Those that wait for their warp go on together.
  const Thread* first = warp->lanes.front();
  bool all_done = true;
  for (const Thread* thread : warp->lanes) {
    const bool same =
        thread->wait == first->wait &&
        thread->fiber.is_done() == first->fiber.is_done() &&
        (first->wait != Wait::kWarp || thread->operation == first->operation);
    // A barrier of the block may be reached by some lanes while others end;
    // that is found where the block never meets.
    if (!same) Refuse("the lanes of a warp do not meet");
    all_done &= thread->fiber.is_done();
  }
  warp->is_done = all_done;
  if (first->wait == Wait::kWarp) {
    for (std::size_t i = 0; i < warp->lanes.size(); ++i) {
      warp->given[i] = warp->lanes[i]->given;
    }
    for (Thread* thread : warp->lanes) thread->wait = Wait::kNothing;
  }
  return true;
}

// Lets a block go on whose threads all wait for it.
bool Release(Block* block) {
  for (const Thread* thread : block->threads) {
    if (thread->wait != Wait::kBlock) return false;
  }
  for (Thread* thread : block->threads) thread->wait = Wait::kNothing;
  return true;
}

void RunAll(std::vector<Warp>* warps, std::vector<Block>* blocks) {
  std::vector<Warp*> left;
  for (Warp& warp : *warps) left.push_back(&warp);
  while (!left.empty()) {
    std::shuffle(left.begin(), left.end(), t_random);
    bool ran = false;
    for (Warp* warp : left) {
      // A few steps at once: some warps get ahead of others.
      for (std::uint64_t n = t_random() % 8; n > 0; --n) {
        if (!Advance(warp)) break;
        ran = true;
        if (warp->is_done) break;
      }
    }
    for (Block& block : *blocks) ran |= Release(&block);
    std::erase_if(left, [](const Warp* warp) { return warp->is_done; });
    if (ran || left.empty()) continue;
    // By chance no warp had a step, or none can have one.
    bool can_run = false;
    for (const Warp* warp : left) {
      can_run |= warp->lanes.front()->wait == Wait::kNothing;
    }
    if (!can_run) Refuse("a barrier that some threads of the block left out");
  }
}

}  // namespace

void Refuse(const char* what) {
  const Thread* thread = t_here;
  std::fprintf(stderr, "CUDA emulator: %s", what);
  if (thread != nullptr) {
    std::fprintf(stderr, " (block %u, thread %u, at %s)", thread->place.block.x,
                 thread->place.thread.x,
                 thread->operation == nullptr ? "?" : thread->operation);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

const Place& Here() { return t_here->place; }

std::uint64_t Exchange(const char* operation, std::uint64_t value,
                       unsigned from) {
  Thread* self = t_here;
  self->given = value;
  self->operation = operation;
  self->wait = Wait::kWarp;
  self->fiber.Yield();
  return self->warp->given[from % kLanes];
}

std::uint64_t Reduce(const char* operation, std::uint64_t value,
                     Combine combine) {
  std::uint64_t all = Exchange(operation, value, 0);
  const Warp& warp = *t_here->warp;
  for (unsigned i = 1; i < kLanes; ++i) all = combine(all, warp.given[i]);
  return all;
}

void MeetWarp() { Exchange("__syncwarp", 0, 0); }

void MeetBlock() {
  Thread* self = t_here;
  self->operation = "__syncthreads";
  self->wait = Wait::kBlock;
  self->fiber.Yield();
}

void* Shared(std::size_t size) {
  std::vector<std::byte>& shared = t_here->block->shared;
  // Not zero: shared memory is not.
  if (shared.empty()) shared.assign(size, std::byte{0xa5});
  if (shared.size() != size) Refuse("shared memory of two sizes");
  return shared.data();
}

void SetSeed(std::uint64_t seed) { t_random.seed(seed); }

bool HasKernel(std::string_view name) { return KernelCalled(name) != nullptr; }

bool RunKernel(std::string_view name, Dim3 grid, Dim3 block,
               std::size_t /*shared_bytes*/, void** args) {
  const Invoke kernel = KernelCalled(name);
  if (kernel == nullptr || grid.x == 0 || grid.y != 1 || grid.z != 1 ||
      block.x == 0 || block.x > 1024 || block.y != 1 || block.z != 1 ||
      block.x % kLanes != 0) {
    return false;
  }
  const std::size_t n_threads = std::size_t{grid.x} * block.x;
  while (t_threads.size() < n_threads) {
    t_threads.push_back(std::make_unique<Thread>());
  }
  std::vector<Block> blocks(grid.x);
  std::vector<Warp> warps(n_threads / kLanes);
  const Launch launch{kernel, args};
  const Launch* before = t_launch;
  t_launch = &launch;
  for (std::size_t i = 0; i < n_threads; ++i) {
    Thread* thread = t_threads[i].get();
    Block& its_block = blocks[i / block.x];
    thread->place = {{static_cast<unsigned>(i % block.x), 0, 0},
                     {static_cast<unsigned>(i / block.x), 0, 0},
                     grid};
    thread->wait = Wait::kNothing;
    thread->operation = nullptr;
    thread->block = &its_block;
    thread->warp = &warps[i / kLanes];
    thread->warp->lanes.push_back(thread);
    its_block.threads.push_back(thread);
    thread->fiber.Start(&Body, thread);
  }
  RunAll(&warps, &blocks);
  t_launch = before;
  return true;
}

}  // namespace tdbg::cuda_emulator

// The working memory and the tables of launches: who gets them, and when again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "fake_devices.h"
#include "reducers/cuda/device.h"
#include "reducers/cuda/result_ring.h"
#include "reducers/cuda/scratch.h"
#include "reducers/cuda/table_cache.h"
#include "testing.h"

namespace tdbg {
namespace {

using cuda::Device;
using cuda::ScratchPool;
using testing::Alive;
using testing::Framework;
using testing::FreshDriver;

constexpr std::uint32_t kSmall = 1;
constexpr std::uint32_t kLarge = ScratchPool::kFirstTiles + 1;

// A pool of a device that is open, on streams of a framework.
struct Pool {
  const cuda::Driver driver = FreshDriver(1);
  Framework framework{driver};
  std::unique_ptr<Device> device;
  std::unique_ptr<ScratchPool> scratch;

  Pool() {
    auto opened = Device::Open(&driver, 0);
    EXPECT_OK(opened);
    device = std::move(opened).value();
    scratch = std::make_unique<ScratchPool>(device.get());
  }

  cuda::Stream NewStream() {
    return Framework::StreamOf(framework.NewStream());
  }
  // Where the memory for so many tiles begins.
  cuda::DeviceAddress For(cuda::Place place, std::uint32_t n_tiles) {
    const Device::Scope scope(*device);
    const auto found = scratch->For(place, n_tiles);
    EXPECT_OK(found);
    EXPECT_OK(scratch->Launched(found.value()));
    EXPECT_TRUE(found.value()->memory.n_tiles >= n_tiles);
    return found.value()->memory.partials;
  }
  void Forget(std::uint64_t graph) {
    const Device::Scope scope(*device);
    scratch->Forget(graph);
  }
  void Synchronize(cuda::Stream stream) {
    EXPECT_EQ(framework.Synchronize({.device = 0, .stream = stream}), 0);
  }
  [[nodiscard]] std::uint64_t n_bytes() const {
    return device->allocated_bytes();
  }
};

TDBG_TEST(WhatAStreamHasOutgrownIsUsedAgainWhenItIsDoneWithIt) {
  {
    Pool pool;
    cuda::Stream const slow = pool.NewStream();
    fakecuda_hold_stream(slow, 1);
    const auto small = pool.For({slow}, kSmall);
    EXPECT_EQ(pool.For({slow}, kSmall), small);
    EXPECT_NE(pool.For({slow}, kLarge), small);
    std::uint64_t n_bytes = pool.n_bytes();
    EXPECT_NE(pool.For({pool.NewStream()}, kSmall), small);
    EXPECT_TRUE(pool.n_bytes() > n_bytes);
    n_bytes = pool.n_bytes();
    fakecuda_hold_stream(slow, 0);
    pool.Synchronize(slow);
    EXPECT_EQ(pool.For({pool.NewStream()}, kSmall), small);
    EXPECT_EQ(pool.n_bytes(), n_bytes);
  }
  EXPECT_EQ(Alive(), "");
}

TDBG_TEST(WhatAGraphHasOutgrownIsItsOwnUntilItIsGone) {
  Pool pool;
  cuda::Stream const stream = pool.NewStream();
  const cuda::Place graph{.stream = stream, .graph = 7};
  const auto small = pool.For(graph, kSmall);
  const auto large = pool.For(graph, kLarge);
  EXPECT_NE(small, large);
  pool.Synchronize(stream);
  EXPECT_NE(pool.For({stream}, kSmall), small);
  const cuda::Place other{.stream = stream, .graph = 8};
  EXPECT_NE(pool.For(other, kSmall), small);
  const std::uint64_t n_bytes = pool.n_bytes();
  pool.Forget(7);
  EXPECT_EQ(pool.For({pool.NewStream()}, kLarge), large);
  EXPECT_EQ(pool.For({.stream = stream, .graph = 9}, kSmall), small);
  EXPECT_EQ(pool.n_bytes(), n_bytes);
}

// After a join the stream may have been destroyed, and its handle be another's.
TDBG_TEST(AHandleThatMayBeAnotherStreamsWaitsForWhatItLaunched) {
  Pool pool;
  cuda::Stream const stream = pool.NewStream();
  const auto waits = [&] {
    const int before = fakecuda_calls("cuStreamWaitEvent");
    (void)pool.For({stream}, kSmall);
    return fakecuda_calls("cuStreamWaitEvent") - before;
  };
  EXPECT_EQ(waits(), 0);
  EXPECT_EQ(waits(), 0);
  cuda::Stream const joining = pool.NewStream();
  {
    const Device::Scope scope(*pool.device);
    EXPECT_OK(pool.scratch->Join(joining));
  }
  EXPECT_EQ(waits(), 1);
  EXPECT_EQ(waits(), 0);
}

TDBG_TEST(APieceOfResultsIsUsedAgainWhenAllBeforeItAreBack) {
  std::array<std::byte, 1024> host{};
  cuda::ResultRing ring(4096, host.data(), host.size());
  const auto first = ring.Take(512);
  const auto second = ring.Take(300);  // Rounded up.
  EXPECT_EQ(first->device, 4096U);
  EXPECT_EQ(second->device, 4096U + 512);
  EXPECT_TRUE(second->host == host.data() + 512);
  EXPECT_FALSE(ring.Take(1).has_value());
  ring.GiveBack(*second);
  EXPECT_FALSE(ring.Take(1).has_value());
  EXPECT_EQ(ring.n_out(), 1U);
  ring.GiveBack(*first);
  EXPECT_EQ(ring.n_out(), 0U);
  EXPECT_EQ(ring.Take(1024)->offset, 0U);
}

// Tables of one entry each, of so many elements.
struct Tables {
  Pool pool;
  cuda::TableCache cache{pool.device.get()};

  // After a launch with it.
  const cuda::TableCache::Table* Use(std::uint64_t count, cuda::Stream stream) {
    const Device::Scope scope(*pool.device);
    cuda::TensorEntry entry{};
    entry.count = count;
    const auto table = cache.For({&entry, 1}, stream);
    EXPECT_OK(table);
    if (table.value() != nullptr) {
      EXPECT_OK(cache.Used(table.value()));
    }
    return table.value();
  }
  bool IsOver() {
    const Device::Scope scope(*pool.device);
    return cache.is_over();
  }
};

TDBG_TEST(ATableIsNotOverwrittenWhileALaunchMayReadIt) {
  Tables tables;
  cuda::Stream const stream = tables.pool.NewStream();
  fakecuda_hold_stream(stream, 1);
  constexpr auto kMax = cuda::TableCache::kMaxTables;
  for (std::size_t i = 0; i < kMax; ++i) {
    EXPECT_TRUE(tables.Use(i, stream) != nullptr);
  }
  EXPECT_TRUE(tables.Use(kMax, stream) == nullptr);
  EXPECT_TRUE(tables.Use(3, stream) != nullptr);  // Is there, and read only.
  EXPECT_EQ(tables.cache.n_uploads(), kMax);
  EXPECT_FALSE(tables.IsOver());
  fakecuda_hold_stream(stream, 0);
  tables.pool.Synchronize(stream);
  EXPECT_TRUE(tables.IsOver());
  EXPECT_TRUE(tables.Use(kMax, stream) != nullptr);
  EXPECT_EQ(tables.cache.n_uploads(), kMax + 1);
}

TDBG_TEST(ATableIsNotReadByAStreamThatDidNotUploadIt) {
  Tables tables;
  const auto* table = tables.Use(1, tables.pool.NewStream());
  EXPECT_TRUE(tables.Use(1, tables.pool.NewStream()) != table);
  EXPECT_EQ(tables.cache.n_uploads(), 2U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }

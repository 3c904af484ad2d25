// A sealed shard of rows, and the means to damage what lies beside it.

#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {

inline ShardBuilder ManyRows(int n_steps) {
  ShardBuilder shard(SomeHeader());
  for (std::uint32_t id = 1; id <= 4; ++id) {
    shard.AddDefinition(SomeDefinition(id, NameOf(id)));
  }
  for (int step = 0; step < n_steps; ++step) {
    shard.AddRows(step, {SomeRow(1, step), SomeRow(2, step + 0.5)});
    shard.AddRows(step, {SomeRow(3, step), SomeRow(1, step + 0.25)});
  }
  shard.Seal();
  return shard;
}

inline void Poke(int fd, std::uint64_t at, std::byte value) {
  if (::pwrite(fd, &value, 1, static_cast<off_t>(at)) != 1) {
    Fail(__FILE__, __LINE__, "pwrite");
  }
}

}  // namespace tdbg::testing

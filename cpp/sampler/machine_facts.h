// What a machine is, as the event `machine` says it.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/gpus.h"
#include "sampler/text.h"

namespace tdbg {

struct MachineFacts {
  std::string node;  // The name of the host.
  std::string boot_id;
  std::string kernel;
  std::string container;  // What kind of; empty: none is known.
  std::size_t cores = 0;
  std::size_t allowed_cores = 0;                           // By affinity alone.
  double quota = std::numeric_limits<double>::infinity();  // In cores.
  std::uint64_t memory = kNotMeasured;
  std::uint64_t memory_limit = kNotMeasured;
  std::vector<GpuFacts> gpus;
  std::vector<std::string> networks;
  std::vector<std::string> disks;
  // What is not measured -> why.
  std::map<std::string, std::string> not_measured;
};

// The event's JSON: what is unknown, or infinite, is null.
[[nodiscard]] std::string MachineEvent(const MachineFacts& facts);

// A string of JSON.  Bytes beyond ASCII become '?'.
[[nodiscard]] std::string JsonString(std::string_view text);

// The kind of container that this process is in; empty: none is known.  `root`
// stands before "/proc" and others.
[[nodiscard]] std::string FindContainer(const std::string& root,
                                        std::string_view group);

}  // namespace tdbg

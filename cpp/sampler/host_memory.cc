#include "sampler/host_memory.h"

namespace tdbg {
namespace {

std::uint64_t StalledNs(std::string_view line) {
  while (!line.empty()) {
    const std::string_view word = TakeWord(&line);
    if (word.starts_with("total=")) {
      return Scaled(FirstNumber(word.substr(6)), 1000);
    }
  }
  return kNotMeasured;
}

}  // namespace

HostMemory ParseHostMemory(std::string_view text) {
  HostMemory memory;
  while (!text.empty() &&
         (memory.total == kNotMeasured || memory.available == kNotMeasured)) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    if (key == "MemTotal:") memory.total = Scaled(TakeNumber(&line), 1024);
    if (key == "MemAvailable:") {
      memory.available = Scaled(TakeNumber(&line), 1024);
    }
  }
  return memory;
}

Paging ParsePaging(std::string_view text, std::uint64_t page_bytes) {
  Paging paging;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    if (!line.starts_with("p")) continue;
    const std::string_view key = TakeWord(&line);
    if (key == "pswpin") {
      paging.swap_in_bytes = Scaled(TakeNumber(&line), page_bytes);
    } else if (key == "pswpout") {
      paging.swap_out_bytes = Scaled(TakeNumber(&line), page_bytes);
    } else if (key == "pgmajfault") {
      paging.major_faults = TakeNumber(&line);
      break;  // It stands behind the others, and most lines behind it.
    }
  }
  return paging;
}

Pressure ParsePressure(std::string_view text) {
  Pressure pressure;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    if (key == "some") pressure.some_ns = StalledNs(line);
    if (key == "full") pressure.full_ns = StalledNs(line);
  }
  return pressure;
}

}  // namespace tdbg

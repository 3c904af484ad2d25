#include "sampler/processors.h"

#include <algorithm>
#include <cmath>

#include "sampler/profile_rows.h"

namespace tdbg {
namespace {

// Kernels before 2.6.33 have fewer columns; the rest is zero then.
CoreTicks TakeCoreTicks(std::string_view line) {
  std::uint64_t column[8] = {};
  for (std::uint64_t& each : column) {
    const std::uint64_t number = TakeNumber(&line);
    each = number == kNotMeasured ? 0 : number;
  }
  return {.user = column[0] + column[1],
          .system = column[2] + column[5] + column[6],
          .idle = column[3],
          .iowait = column[4],
          .steal = column[7]};
}

// Idle time and time of waiting go back now and then: that is no time.
double TicksBetween(std::uint64_t before, std::uint64_t now) {
  return now > before ? static_cast<double>(now - before) : 0.0;
}

}  // namespace

void ParseProcessorTicks(std::string_view text, ProcessorTicks* ticks) {
  ticks->all = {};
  ticks->processes_running = ticks->processes_blocked = kNotMeasured32;
  std::fill(ticks->cores.begin(), ticks->cores.end(), CoreTicks{});
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    std::string_view word = TakeWord(&line);
    if (word == "cpu") {
      ticks->all = TakeCoreTicks(line);
    } else if (word.starts_with("cpu")) {
      const auto number = ParseNumber(word.substr(3));
      if (!number || *number >= ProcessorTicks::kMaxCores) continue;
      if (*number >= ticks->cores.size()) ticks->cores.resize(*number + 1);
      ticks->cores[*number] = TakeCoreTicks(line);
    } else if (word == "procs_running") {
      ticks->processes_running = Narrow(TakeNumber(&line));
    } else if (word == "procs_blocked") {
      ticks->processes_blocked = Narrow(TakeNumber(&line));
    }
  }
}

CoreShares SharesBetween(const CoreTicks& before, const CoreTicks& now) {
  constexpr CoreShares kNone = {kNoShare, kNoShare, kNoShare, kNoShare,
                                kNoShare};
  if (!before.is_known() || !now.is_known()) return kNone;
  const double user = TicksBetween(before.user, now.user);
  const double system = TicksBetween(before.system, now.system);
  const double idle = TicksBetween(before.idle, now.idle);
  const double iowait = TicksBetween(before.iowait, now.iowait);
  const double steal = TicksBetween(before.steal, now.steal);
  const double total = user + system + idle + iowait + steal;
  if (total == 0.0) return kNone;
  const auto share = [total](double ticks) {
    return static_cast<float>(ticks / total);
  };
  return {.user = share(user),
          .system = share(system),
          .iowait = share(iowait),
          .steal = share(steal),
          .busy = share(user + system + steal)};
}

std::uint8_t HalfPercents(float share) {
  if (std::isnan(share)) return kCoreNotMeasured;
  return static_cast<std::uint8_t>(
      std::lround(std::clamp(share, 0.0F, 1.0F) * 200.0F));
}

}  // namespace tdbg

#include "sampler/process_files.h"

namespace tdbg {

ProcessStat ParseProcessStat(std::string_view text) {
  ProcessStat stat;
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return stat;
  text.remove_prefix(name_end + 1);
  const std::string_view state = TakeWord(&text);
  if (state.size() != 1) return stat;
  stat.state = state[0];
  SkipWords(&text, 8);  // Fields 4 to 11.
  stat.major_faults = TakeNumber(&text);
  SkipWords(&text, 1);
  const std::uint64_t user = TakeNumber(&text);
  stat.cpu_ticks = Sum(user, TakeNumber(&text));
  SkipWords(&text, 4);
  stat.threads = TakeNumber(&text);
  SkipWords(&text, 1);
  stat.start_ticks = TakeNumber(&text);
  SkipWords(&text, 1);
  stat.resident_pages = TakeNumber(&text);
  return stat;
}

RunTimes ParseRunTimes(std::string_view text) {
  RunTimes times;
  times.run_ns = TakeNumber(&text);
  times.queued_ns = TakeNumber(&text);
  return times;
}

ProcessBytes ParseProcessBytes(std::string_view text) {
  return {.all_read = NumberOf(text, "rchar:"),
          .read = NumberOf(text, "read_bytes:"),
          .written = NumberOf(text, "write_bytes:")};
}

}  // namespace tdbg

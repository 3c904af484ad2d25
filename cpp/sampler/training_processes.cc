#include "sampler/training_processes.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "sampler/process_files.h"

namespace tdbg {
namespace {

constexpr std::size_t kFilesOfProcess = 3;

std::uint64_t SystemFigure(int name, std::uint64_t otherwise) {
  const long figure = ::sysconf(name);
  return figure > 0 ? static_cast<std::uint64_t>(figure) : otherwise;
}

}  // namespace

TrainingProcesses::TrainingProcesses(std::string root,
                                     std::size_t max_open_files)
    : root_(std::move(root)),
      page_bytes_(SystemFigure(_SC_PAGESIZE, 4096)),
      tick_ns_(1'000'000'000 / SystemFigure(_SC_CLK_TCK, 100)),
      n_may_open_(max_open_files / kFilesOfProcess) {}

void TrainingProcesses::Add(const TrainingProcess& process) {
  const auto is_known = [&](const Followed& each) {
    return each.process.pid == process.pid &&
           each.process.start_ticks == process.start_ticks;
  };
  auto& kind = process.kind == kRankKind ? ranks_ : others_;
  if (size() >= kMaxProcesses ||
      std::any_of(kind.begin(), kind.end(), is_known)) {
    return;
  }
  const std::string folder = root_ + "/proc/" + std::to_string(process.pid);
  TextBuffer buffer;
  const auto text = ReadOnce(folder + "/stat", &buffer);
  if (ParseProcessStat(text.value_or("")).start_ticks != process.start_ticks) {
    return;
  }
  const bool stays_open = n_may_open_ > 0;
  if (stays_open) --n_may_open_;
  const auto file = [&](const char* name) {
    return KernelFile(folder + name, KernelFile::Content::kRecord, stays_open);
  };
  kind.push_back({.process = process,
                  .stat = file("/stat"),
                  .run_times = file("/schedstat"),
                  .bytes = file("/io"),
                  .stays_open = stays_open});
}

bool TrainingProcesses::Read(Followed* followed, TextBuffer* buffer,
                             ProcessRow* row) const {
  const auto text = [buffer](KernelFile* file) {
    return file->Read(buffer).value_or(std::string_view());
  };
  const TrainingProcess& process = followed->process;
  const ProcessStat stat = ParseProcessStat(text(&followed->stat));
  // No such process; or it ended, and another one has its number.
  if (stat.state == '\0' || stat.state == 'X' ||
      stat.start_ticks != process.start_ticks) {
    return false;
  }
  const RunTimes times = ParseRunTimes(text(&followed->run_times));
  const ProcessBytes bytes = ParseProcessBytes(text(&followed->bytes));
  row->pid = process.pid;
  row->rank = process.rank;
  row->kind = process.kind;
  row->state = static_cast<unsigned char>(stat.state);
  row->threads = Narrow(stat.threads);
  row->worker = process.worker;
  row->run_ns = times.run_ns;
  row->queued_ns = times.queued_ns;
  row->resident_bytes = Scaled(stat.resident_pages, page_bytes_);
  row->read_bytes = bytes.read;
  row->all_read_bytes = bytes.all_read;
  row->write_bytes = bytes.written;
  row->major_faults = stat.major_faults;
  row->cpu_ns = Scaled(stat.cpu_ticks, tick_ns_);
  return true;
}

void TrainingProcesses::Forget(std::vector<Followed>* all, std::size_t i) {
  if ((*all)[i].stays_open) ++n_may_open_;
  std::swap((*all)[i], all->back());
  all->pop_back();
}

void TrainingProcesses::Sample(
    std::int64_t time, TextBuffer* buffer,
    const std::function<void(const ProcessRow&)>& on_process) {
  // Returns whether the process lives.
  const auto sample = [&](std::vector<Followed>* all, std::size_t i) {
    ProcessRow row{.time = time};
    const bool lives = Read(&(*all)[i], buffer, &row);
    if (lives) on_process(row);
    if (!lives) Forget(all, i);
    return lives;
  };
  for (std::size_t i = 0; i < ranks_.size();) {
    if (sample(&ranks_, i)) ++i;
  }
  const std::size_t n = std::min(kInTurn, others_.size());
  for (std::size_t i = 0; i < n && !others_.empty(); ++i) {
    if (next_ >= others_.size()) next_ = 0;
    if (sample(&others_, next_)) ++next_;
  }
}

std::vector<std::int32_t> TrainingProcesses::pids(bool only_ranks) const {
  std::vector<std::int32_t> pids;
  for (const Followed& each : ranks_) pids.push_back(each.process.pid);
  if (only_ranks) return pids;
  for (const Followed& each : others_) pids.push_back(each.process.pid);
  return pids;
}

}  // namespace tdbg
